// How often an agent tells the coordinator of votes. Where masks move at every
// step it tells after every step, and many jobs or trainers would get it shut
// out as who floods (docs/security.md, "Budgets"). Before that happens it waits
// for the next tick that has room.
//
// Pure: no clock. Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_VOTE_PACE_H_
#define PACTRAIN_AGENT_CORE_VOTE_PACE_H_

#include <cstddef>

#include "absl/time/time.h"
#include "protocol/control.h"

namespace pactrain::agent {

class VotePace {
 public:
  // Half of what one identity may send, and not more than its share of what
  // the `agents` (>= 1) of its largest job may send together, as all may have
  // names of one job key. The rest is for what is no LocalTrainers.
  static double BytesPerSecond(size_t agents);

  // REQUIRES: `now` never goes back.
  bool HasRoom(size_t agents, absl::Duration now);
  // Whether there was room or not.
  void Spend(const protocol::LocalTrainers& told);

 private:
  static constexpr double kBytesAtOnce = 4 << 20;

  double room_ = kBytesAtOnce;  // Below 0: told without room.
  absl::Duration at_ = absl::ZeroDuration();
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_VOTE_PACE_H_
