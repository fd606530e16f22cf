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
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/core/effects.h"
#include "agent/core/events.h"
#include "agent/core/group_state.h"
#include "agent/core/options.h"
#include "agent/core/outbox.h"
#include "agent/core/status.h"
#include "agent/core/trainers.h"
#include "base/repeat_filter.h"
#include "protocol/local_trainers.h"

namespace pactrain::agent {

class AgentState {
 public:
  // InvalidArgument: an option is out of range.
  static absl::StatusOr<std::unique_ptr<AgentState>> Create(
      const Options& options);

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
  explicit AgentState(const Options& options)
      : options_(options), trainers_(options) {}

  // A generation that is over here; answers members that are still at it.
  struct Ended {
    std::unique_ptr<GroupState> group;
    absl::Duration at;
  };

  // agent_state.cc: trainers and time.
  absl::StatusOr<TrainerRecord> Check(const wire::Hello& hello) const;
  void On(const TrainerHello& event, absl::Duration now);
  void On(const TrainerMessage& event, absl::Duration now);
  void On(const TrainerGone& event, absl::Duration now);
  void On(const FormerTrainerLeft& event, absl::Duration now);
  void On(const Tick& event, absl::Duration now);
  void OnVote(const TrainerRecord& record, const wire::Vote& vote,
              GroupState& group);
  // Ends the trainer's generation, if it has one, and forgets it. `may_return`:
  // it lives.
  void DropTrainer(TrainerId id, const std::string& reason, absl::Duration now,
                   bool may_return = false);
  void DropReplaced(const TrainerRecord& record, absl::Duration now);
  void FailTrainer(TrainerId id, wire::Code code, const std::string& text);
  GroupState* RunningGroupOf(const TrainerRecord& record);
  // False: it is no trainer whose generation is over.
  bool ForgetLingering(TrainerId id, const std::string& reason);
  void SweepEnded(absl::Duration now);

  // agent_peers.cc
  void On(const PeerConnected& event, absl::Duration now);
  void On(const PeerDisconnected& event, absl::Duration now);
  void On(const PeerControl& event, absl::Duration now);
  void On(const PeerData& event, absl::Duration now);
  // The connected process as a member of the group's generation; -1: it is
  // none, another one of its name perhaps.
  int SenderIn(const GroupState& group, const std::string& agent) const;
  void UpdatePeers(absl::Duration now);
  void ForgetPeer(const std::string& agent, absl::Duration now);
  GroupState* FindGeneration(const protocol::GroupId& group,
                             const protocol::Digest& generation);

  // agent_coordinator.cc
  void On(const CoordinatorConnected& event, absl::Duration now);
  void On(const CoordinatorDisconnected& event, absl::Duration now);
  void On(const protocol::CoordinatorMessage& event, absl::Duration now);
  // The shell's.
  void On(const protocol::Welcome&, absl::Duration) {}
  void On(const protocol::HistoryMark&, absl::Duration) {}
  void On(const protocol::StartGeneration& message, absl::Duration now);
  void On(const protocol::GroupWaiting& message, absl::Duration now);
  void On(const protocol::JoinRefused& message, absl::Duration now);
  void On(const protocol::Prepare& message, absl::Duration now);
  void On(const protocol::Revoke& message, absl::Duration now);
  void On(const protocol::EndGeneration& message, absl::Duration now);
  // Its trainers here, by rank; empty if one of them is not there.
  std::vector<GroupState::LocalTrainer> TrainersOf(
      const protocol::StartGeneration& start, int me);
  void ForgetBefore(const protocol::Generation& generation,
                    const protocol::Member& me);
  GroupState* Running(const protocol::GroupId& group, uint64_t generation);
  // Its trainers here are told, and gone.
  void RefuseOld(const protocol::Generation& generation,
                 const protocol::Member& me, absl::Duration now);

  // Its generation is over, and it has been told so. It may attach again on
  // another connection: as long as this one is open it lives.
  void Linger(const TrainerRecord& record, const std::string& reason,
              bool straggled, const std::vector<std::string>& unreached);

  // What the coordinator is told of trainers, changed; at the end of the event
  // it is told.
  void Note(const protocol::TrainerJoined& joined);
  void Note(const protocol::TrainerLeft& left);
  void Note(const protocol::StepReport& report);
  const protocol::TrainerLeft* FindLeft(
      const protocol::GroupId& group, const protocol::Digest& attach_id) const;
  void TellChanged();
  void TellVotes();
  void ForgetGroups();  // Those of which nobody is here, if there are too many.

  const Options options_;
  Outbox outbox_;
  Trainers trainers_;
  base::RepeatFilter refusals_;  // That were logged.
  std::map<protocol::GroupId, std::unique_ptr<GroupState>> groups_;
  std::deque<Ended> ended_;
  // Who lingers: as many at the most as the shell has connections.
  std::map<TrainerId, std::pair<protocol::GroupId, protocol::Digest>>
      lingering_;
  // Generation seen per group.
  struct Newest {
    uint64_t number = 0;
    protocol::Digest digest;
  };
  std::map<protocol::GroupId, Newest> newest_;
  // All that the coordinator is told of trainers: said whole when it changes,
  // and on every stream.
  std::map<protocol::GroupId, protocol::LocalTrainers> local_;
  std::set<protocol::GroupId> changed_;
  std::set<protocol::GroupId> voted_;  // In votes alone; told at the next tick.
  uint64_t revision_ = 0;
  std::map<protocol::GroupId, GroupStatus> history_;  // Of ended generations.
  // Of each peer, as the newest StartGeneration named it.
  std::map<std::string, protocol::Digest> incarnations_;
  std::vector<SetPeers::Peer> peers_;  // As last told to the shell.
  std::string coordinator_reason_ = "not reached yet";
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_AGENT_STATE_H_
