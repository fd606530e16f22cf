// The coordinator's word: generations, decisions, refusals.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/agent_state.h"
#include "agent/core/wire_convert.h"
#include "base/weakened.h"

namespace pactrain::agent {

using protocol::Generation;

namespace {

constexpr size_t kMaxGroups = 4096;  // Whose newest generation is remembered.

}  // namespace

GroupState* AgentState::Running(const protocol::GroupId& group,
                                uint64_t generation) {
  auto it = groups_.find(group);
  if (it == groups_.end() || it->second->generation().number != generation) {
    return nullptr;
  }
  return it->second.get();
}

// Everything is said again: the coordinator may be another one.
void AgentState::On(const CoordinatorConnected&, absl::Duration) {
  outbox_.coordinator_connected = true;
  outbox_.Log("connected to the coordinator");
  for (const auto& [id, group] : groups_) group->ReportAll();
  for (const auto& [group, local] : local_) outbox_.ToCoordinator(local);
}

void AgentState::On(const CoordinatorDisconnected& event, absl::Duration) {
  const bool was_connected =
      std::exchange(outbox_.coordinator_connected, false);
  coordinator_reason_ = event.reason;
  outbox_.Warn(was_connected
                   ? absl::StrCat("lost the coordinator: ", event.reason,
                                  "; running generations go on")
                   : event.reason);
  for (const auto& [id, record] : trainers_.all()) {
    if (record.generation != 0) continue;
    outbox_.ToTrainer(id, MakeWaiting(absl::StrCat(
                              "waiting for the coordinator: ", event.reason)));
  }
}

void AgentState::On(const protocol::CoordinatorMessage& event,
                    absl::Duration now) {
  std::visit([&](const auto& message) { On(message, now); }, event);
}

std::vector<GroupState::LocalTrainer> AgentState::TrainersOf(
    const protocol::StartGeneration& start, int me) {
  const Generation& generation = start.generation;
  const protocol::Member& member = generation.members[me];
  std::vector<GroupState::LocalTrainer> trainers;
  bool complete = true;
  for (size_t i = 0; i < member.ranks.size(); ++i) {
    const TrainerRecord* record =
        trainers_.Find(generation.group, member.attach_ids[i]);
    if (record == nullptr) {
      complete = false;
      if (FindLeft(generation.group, member.attach_ids[i]) == nullptr) {
        Note(protocol::TrainerLeft{generation.group, member.ranks[i],
                                   member.attach_ids[i],
                                   "left before the generation began"});
      }
      continue;
    }
    trainers.push_back({record->id, member.ranks[i], record->memory, {}});
    const protocol::Declared& declared = record->trainer.declared;
    trainers.back().masks = {member.ranks[i], declared.layout_digest,
                             declared.mask_digest};
    trainers.back().nccl = {member.ranks[i], record->nccl_version,
                            record->device, record->gpu};
    if (i < start.seats.size()) trainers.back().seat = start.seats[i];
  }
  if (complete) return trainers;
  for (const auto& trainer : trainers) {
    wire::Failed failed =
        MakeFailed(kNoStep, wire::Code::kStepNotApplied, true,
                   absl::StrCat("generation ", generation.number,
                                " could not begin: a rank on this node left.\n"
                                "Start all ranks again."));
    failed.may_rejoin = generation.on_shrink != protocol::OnShrink::kAbort;
    outbox_.ToTrainer(trainer.id, failed);
    const char* const reason = "its generation could not begin";
    if (failed.may_rejoin != 0) {
      Linger(*trainers_.Find(trainer.id), reason, /*straggled=*/false, {});
      continue;
    }
    DropTrainer(trainer.id, reason, absl::Duration());
    outbox_.effects.emplace_back(CloseTrainer{trainer.id});
  }
  return {};
}

// It was formed without those who were gone before. Those of a former process
// are still named: that they are dead is known here alone.
void AgentState::ForgetBefore(const Generation& generation,
                              const protocol::Member& me) {
  protocol::LocalTrainers& local = local_[generation.group];
  local.report.reset();
  local.votes.clear();
  std::erase_if(local.left, [&](const protocol::TrainerLeft& left) {
    return !left.may_return && !left.former &&
           std::count(me.attach_ids.begin(), me.attach_ids.end(),
                      left.attach_id) == 0;
  });
  changed_.insert(generation.group);
}

// The coordinator has lost what this agent was told, and noticed nothing.
void AgentState::RefuseOld(const Generation& generation,
                           const protocol::Member& me, absl::Duration now) {
  const std::string text = absl::StrCat(
      "the coordinator forms generation ", generation.number, " of ",
      generation.group.ToString(), ", and agent ", options_.agent,
      " knows another generation ", newest_.at(generation.group).number,
      " of it: its state directory seems to be an older copy");
  outbox_.Warn(text);
  for (const protocol::Digest& attach_id : me.attach_ids) {
    const TrainerRecord* record = trainers_.Find(generation.group, attach_id);
    if (record == nullptr || record->generation != 0) continue;
    const TrainerId id = record->id;
    FailTrainer(id, wire::Code::kRefused,
                absl::StrCat(text,
                             ".\nStart the coordinator on its newest state "
                             "directory, or start the agents again."));
    DropTrainer(id, absl::StrCat("was refused: ", text), now);
    outbox_.effects.emplace_back(CloseTrainer{id});
  }
}

void AgentState::On(const protocol::StartGeneration& message,
                    absl::Duration now) {
  const Generation& generation = message.generation;
  const absl::Status status = protocol::CheckGeneration(generation);
  const auto it = std::find_if(
      generation.members.begin(), generation.members.end(),
      [&](const protocol::Member& m) { return m.agent == options_.agent; });
  if (!status.ok() || it == generation.members.end() ||
      it->incarnation != options_.incarnation || it->site != options_.site) {
    outbox_.Warn(absl::StrCat(
        "ignored a generation that is not for this agent: ", status.message()));
    return;
  }
  if (newest_.size() >= kMaxGroups) {
    std::erase_if(newest_, [&](const auto& entry) {
      return groups_.count(entry.first) == 0;
    });
  }
  const protocol::Digest digest = generation.ComputeDigest();
  Newest& newest = newest_[generation.group];
  if (digest == newest.digest) return;  // Said again.
  if (generation.number <= newest.number &&
      !PT_WEAKENED(OldGenerationStarted)) {
    return RefuseOld(generation, *it, now);
  }
  newest = {generation.number, digest};
  auto old = groups_.find(generation.group);
  if (old != groups_.end()) {
    old->second->BeginEnd(
        protocol::Cause::kMemberLost,
        absl::StrCat("generation ", generation.number, " follows it"), now);
    old->second->EndNow();
    SweepEnded(now);
  }
  const int me = static_cast<int>(it - generation.members.begin());
  ForgetBefore(generation, *it);
  std::vector<GroupState::LocalTrainer> trainers = TrainersOf(message, me);
  if (trainers.empty()) return;
  for (const auto& trainer : trainers) {
    TrainerRecord& record = *trainers_.Find(trainer.id);
    record.generation = generation.number;
    record.rank = trainer.rank;
    Note(protocol::TrainerJoined{record.group, record.trainer,
                                 record.generation});
  }
  outbox_.Log(absl::StrCat(generation.group.ToString(), ": generation ",
                           generation.number, " with ", generation.world_size,
                           " ranks at ", generation.members.size(),
                           " agents in ", generation.sites.size(),
                           " sites begins at step ", generation.base_step));
  for (const protocol::Member& member : generation.members) {
    incarnations_[member.agent] = member.incarnation;
  }
  auto& group = groups_[generation.group];
  group = std::make_unique<GroupState>(&options_, message, me,
                                       std::move(trainers), &outbox_, now);
  UpdatePeers(now);
  group->Start(now);
}

void AgentState::On(const protocol::GroupWaiting& message, absl::Duration) {
  for (const auto& [id, record] : trainers_.all()) {
    if (record.group == message.group && record.generation == 0) {
      outbox_.ToTrainer(id, MakeWaiting(message.reason));
    }
  }
}

void AgentState::On(const protocol::JoinRefused& message, absl::Duration now) {
  const TrainerRecord* record =
      trainers_.Find(message.group, message.attach_id);
  if (record == nullptr) return;
  const TrainerId id = record->id;
  FailTrainer(
      id, message.replaced ? wire::Code::kReplaced : wire::Code::kRefused,
      absl::StrCat(message.reason, message.replaced
                                       ? kReplacedAdvice
                                       : ".\nCorrect it and start again."));
  DropTrainer(id, absl::StrCat("was refused: ", message.reason), now);
  outbox_.effects.emplace_back(CloseTrainer{id});
}

void AgentState::On(const protocol::Prepare& message, absl::Duration now) {
  TellVotes();  // Before they are why it is refused.
  if (GroupState* group = Running(message.group, message.generation)) {
    group->OnPrepare(message.decision, now);
  }
}

void AgentState::On(const protocol::Revoke& message, absl::Duration) {
  if (GroupState* group = Running(message.group, message.generation)) {
    group->OnRevoke(message.version);
  }
}

void AgentState::On(const protocol::EndGeneration& message,
                    absl::Duration now) {
  if (PT_WEAKENED(EndGenerationIgnored)) return;
  if (GroupState* group = Running(message.group, message.generation)) {
    group->BeginEnd(protocol::Cause::kMemberLost, message.reason, now);
  }
}

}  // namespace pactrain::agent
