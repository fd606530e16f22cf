// How LocalTrainers change: by what became of one trainer.
//
// Pure functions. They keep the limits of limits.h; whoever lets trainers in
// asks HasRoom() first. Each returns whether anything has changed: the revision
// is the caller's.
#ifndef PACTRAIN_PROTOCOL_LOCAL_TRAINERS_H_
#define PACTRAIN_PROTOCOL_LOCAL_TRAINERS_H_

#include <vector>

#include "protocol/control.h"

namespace pactrain::protocol {

// Equal for all attaches of one trainer.
inline bool IsSameTrainer(const Digest& a, const Digest& b) {
  return a.hi == b.hi;
}

// It is here, in that generation.
bool Add(const TrainerJoined& joined, LocalTrainers& local);
// It is not here any more. Nothing is kept of earlier attaches of one that is
// here. The longest gone is forgotten where there are too many, but none that
// may return.
bool Add(const TrainerLeft& left, LocalTrainers& local);
bool Add(const MaskVote& vote, LocalTrainers& local);

// One more may be here.
bool HasRoom(const LocalTrainers& local);
// Null: it did not leave, or that is forgotten.
const TrainerLeft* FindLeft(const LocalTrainers& local,
                            const Digest& attach_id);
// The same of those that are here.
const TrainerJoined* FindHere(const LocalTrainers& local,
                              const Digest& attach_id);

// What a coordinator of the release before is told, one change at a time.
std::vector<AgentMessage> ChangesOf(const LocalTrainers& before,
                                    const LocalTrainers& now);

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_LOCAL_TRAINERS_H_
