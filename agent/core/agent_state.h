// Everything an agent decides: which trainers belong to which generation, what
// a step sends to whom, when it is committed, retried or refused, and when a
// decision switches.
//
// Rules:
//   - A result is handed out only when every member of the generation voted for
//     equal results of that attempt; else every trainer gets a typed error.
//   - StepNotApplied is said only of a step that no member can have committed.
//   - Groups do not influence each other; a lost coordinator influences none.
//   - Every wait ends by a deadline that Tick() sees.
//
// Pure: no clock, I/O, threads or logging; reads slots and writes result
// regions while handling an event, and at no other time. Thread-compatible.
//
// Example:
//   auto state = AgentState::Create(options);
//   auto grant = (*state)->CheckHello(hello);  // then make the memory
//   for (Effect& e : (*state)->Handle(TrainerHello{id, hello, memory}, now))
//   ...
#ifndef PACTRAIN_AGENT_CORE_AGENT_STATE_H_
#define PACTRAIN_AGENT_CORE_AGENT_STATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/core/effects.h"
#include "agent/core/events.h"
#include "agent/core/options.h"
#include "agent/core/status.h"

namespace pactrain::agent {

class AgentState {
 public:
  // InvalidArgument: an option is out of range.
  static absl::StatusOr<std::unique_ptr<AgentState>> Create(
      const Options& options);
  ~AgentState();

  // What memory a Hello asks for. The slot is the trainer's own; trainers with
  // an equal region share one result of the same size, which lives as long as
  // one of them.
  struct HelloGrant {
    uint64_t bytes = 0;  // Of the slot and of the result; a multiple of 64.
    std::string region;
  };
  //   InvalidArgument: a field is malformed or over a limit.
  //   FailedPrecondition: another site, model, world size or slot size than the
  //     trainers of the same launch, or its rank is taken.
  //   ResourceExhausted: over max_trainers or max_memory_bytes.
  absl::StatusOr<HelloGrant> CheckHello(const wire::Hello& hello) const;

  // `now`: monotonic time since any fixed start, never going back.
  Effects Handle(const Event& event, absl::Duration now);

  // Which attempt of a step a lost connection would end now; of several groups
  // the last one of a step. 0: none is open, here or at a peer as far as was
  // heard, and no generation has just ended.
  int OpenAttempt(absl::Duration now) const;
  // For metrics. Groups that trainers of this agent belong or belonged to.
  std::vector<GroupStatus> Status() const;

 private:
  class Impl;
  explicit AgentState(const Options& options);

  std::unique_ptr<Impl> impl_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_AGENT_STATE_H_
