// How the agent shares the processors of its node with the trainers: it does
// little at a time, and while it waits for busy trainers all links of the node
// stand still. Both functions act on the calling thread and those it starts.
#ifndef PACTRAIN_AGENT_SCHEDULING_H_
#define PACTRAIN_AGENT_SCHEDULING_H_

namespace pactrain::agent {

// Asks the scheduler for short turns that come soon. The share of the
// processors stays what it was. Older systems than Linux 6.12 ignore it, and a
// refusal costs only time: nothing is reported.
void AskForShortTurns();

// Lowers the nice value by `by` (0 to 20), but not below the least that there
// is. False: the system does not allow it (without CAP_SYS_NICE, beyond
// RLIMIT_NICE), and it stays.
bool LowerNice(int by);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_SCHEDULING_H_
