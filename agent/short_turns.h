// How the agent shares the processors of its node with the trainers.
#ifndef PACTRAIN_AGENT_SHORT_TURNS_H_
#define PACTRAIN_AGENT_SHORT_TURNS_H_

namespace pactrain::agent {

// Asks the scheduler for short turns that come soon, for this thread and those
// it starts: the agent does little at a time, and while it waits for the turns
// of busy trainers all links of the node stand still. Its share of the
// processors stays what it was. Older systems than Linux 6.12 ignore it, and a
// refusal costs only time: nothing is reported.
void AskForShortTurns();

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_SHORT_TURNS_H_
