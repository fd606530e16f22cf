#include "agent/core/agent_state.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/agent_impl.h"
#include "agent/core/wire_convert.h"
#include "base/status_macros.h"

namespace pactrain::agent {
namespace {

constexpr size_t kMaxEnded = 64;     // Generations that still answer.
constexpr size_t kMaxHistory = 256;  // Groups whose counters are kept.

// What TrainerLeft says of one that ended its session itself.
constexpr char kDetached[] = "detached";

wire::Code CodeOf(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? wire::Code::kInvalidArgument
                                         : wire::Code::kRefused;
}

// Adds to a vote what the one before it tells of its last change; `step` is
// open.
void NoteChange(const std::optional<protocol::MaskVote>& before, uint64_t step,
                protocol::MaskVote& vote) {
  if (!before) return;
  const bool same = before->mask_digest == vote.mask_digest &&
                    before->steps_unchanged <= vote.steps_unchanged;
  vote.changed_step = same ? before->changed_step : std::optional(step);
  if (same && vote.moved.empty()) vote.moved = before->moved;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentState>> AgentState::Create(
    const Options& options) {
  RETURN_IF_ERROR(options.Check());
  return std::unique_ptr<AgentState>(new AgentState(options));
}

AgentState::AgentState(const Options& options)
    : impl_(std::make_unique<Impl>(options)) {}
AgentState::~AgentState() = default;

absl::StatusOr<AgentState::HelloGrant> AgentState::CheckHello(
    const wire::Hello& hello) const {
  return impl_->CheckHello(hello);
}
Effects AgentState::Handle(const Event& event, absl::Duration now) {
  return impl_->Handle(event, now);
}
std::vector<GroupStatus> AgentState::Status() const { return impl_->Status(); }

absl::StatusOr<AgentState::HelloGrant> AgentState::Impl::CheckHello(
    const wire::Hello& hello) const {
  ASSIGN_OR_RETURN(TrainerRecord record, trainers_.Check(hello));
  return HelloGrant{record.bytes, record.region};
}

Effects AgentState::Impl::Handle(const Event& event, absl::Duration now) {
  std::visit([&](const auto& e) { On(e, now); }, event);
  SweepEnded(now);
  return std::exchange(outbox_.effects, {});
}

void AgentState::Impl::On(const TrainerHello& event, absl::Duration now) {
  auto record = trainers_.Check(event.hello);
  if (record.ok()) DropReplaced(*record, now);
  absl::Status status = record.status();
  if (status.ok() && (event.memory.slot.size() != record->bytes ||
                      event.memory.result.size() != record->bytes)) {
    status =
        absl::FailedPreconditionError("no memory was made for the trainer");
  }
  if (!status.ok()) {
    outbox_.Warn(absl::StrCat("refused a trainer: ", status.message()));
    outbox_.ToTrainer(
        event.trainer,
        MakeFailed(
            kNoStep, CodeOf(status), true,
            absl::StrCat(status.message(), ".\nCorrect it and attach again.")));
    outbox_.effects.emplace_back(CloseTrainer{event.trainer});
    return;
  }
  record->id = event.trainer;
  record->memory = event.memory;
  // It attaches again, so what a former process of ours wrote is no longer so.
  std::erase_if(former_, [&](const protocol::TrainerLeft& left) {
    return left.group == record->group &&
           left.attach_id.hi == record->trainer.attach_id.hi;
  });
  outbox_.Log(absl::StrCat("rank ", record->trainer.rank, " of ",
                           record->group.ToString(), " attached"));
  if (outbox_.coordinator_connected) {
    outbox_.ToCoordinator(
        protocol::TrainerJoined{record->group, record->trainer, 0});
  } else {
    outbox_.ToTrainer(event.trainer,
                      MakeWaiting(absl::StrCat("waiting for the coordinator: ",
                                               coordinator_reason_)));
  }
  trainers_.Add(*std::move(record));
}

GroupState* AgentState::Impl::RunningGroupOf(const TrainerRecord& record) {
  if (record.generation == 0) return nullptr;
  return Running(record.group, record.generation);
}

void AgentState::Impl::On(const TrainerMessage& event, absl::Duration now) {
  TrainerRecord* record = trainers_.Find(event.trainer);
  if (record == nullptr) {
    // All else it said before it knew of the end.
    if (std::holds_alternative<wire::Detach>(event.message) &&
        ForgetLingering(event.trainer, kDetached)) {
      outbox_.effects.emplace_back(CloseTrainer{event.trainer});
    }
    return;
  }
  GroupState* group = RunningGroupOf(*record);
  if (std::holds_alternative<wire::Detach>(event.message)) {
    DropTrainer(event.trainer, kDetached, now);
    outbox_.effects.emplace_back(CloseTrainer{event.trainer});
    return;
  }
  absl::Status status = group == nullptr
                            ? absl::InvalidArgumentError(
                                  "a message about a step came before Attached")
                            : absl::OkStatus();
  if (const auto* submit = std::get_if<wire::Submit>(&event.message)) {
    if (status.ok()) status = group->OnSubmit(event.trainer, *submit, now);
  } else if (const auto* m = std::get_if<CollectiveMessage>(&event.message)) {
    // What an ended generation's NCCL says is of no interest.
    if (group != nullptr) group->OnCollective(event.trainer, *m, now);
    return;
  } else if (status.ok()) {
    OnVote(*record, std::get<wire::Vote>(event.message), *group);
  }
  if (status.ok()) return;
  FailTrainer(event.trainer, wire::Code::kInvalidArgument,
              absl::StrCat(status.message(),
                           ".\nUse one version of agent and trainer library."));
  DropTrainer(event.trainer,
              absl::StrCat("broke the protocol: ", status.message()), now);
  outbox_.effects.emplace_back(CloseTrainer{event.trainer});
}

void AgentState::Impl::OnVote(TrainerRecord& record, const wire::Vote& vote,
                              GroupState& group) {
  protocol::MaskVote out;
  out.group = record.group;
  out.generation = record.generation;
  out.rank = record.rank;
  out.layout_digest = FromWire(vote.layout_digest);
  out.mask_digest = FromWire(vote.mask_digest);
  out.steps_unchanged = vote.steps_unchanged;
  out.settle_steps = std::max<uint32_t>(1, vote.settle_steps);
  out.inside_decision = vote.inside_decision != 0;
  out.elements = vote.elements;
  out.kept_elements = std::min(vote.kept_elements, vote.elements);
  out.moved = GetText(vote.moved);
  NoteChange(record.vote, group.open_step(), out);
  record.vote = out;
  outbox_.ToCoordinator(out);
  group.OnMasks(record.id, {out.rank, out.layout_digest, out.mask_digest,
                            out.steps_unchanged >= out.settle_steps &&
                                out.kept_elements < out.elements,
                            out.kept_elements == 0
                                ? 1
                                : static_cast<double>(out.elements) /
                                      static_cast<double>(out.kept_elements)});
}

bool AgentState::Impl::ForgetLingering(TrainerId id,
                                       const std::string& reason) {
  const auto it = lingering_.find(id);
  if (it == lingering_.end()) return false;
  const Lingering& trainer = it->second;
  const protocol::TrainerLeft left{trainer.group,
                                   trainer.rank,
                                   trainer.attach_id,
                                   reason,
                                   /*generation_ended=*/false,
                                   /*may_return=*/false};
  if (reason == kDetached) KeepDetached(left);
  outbox_.ToCoordinator(left);
  lingering_.erase(it);
  return true;
}

void AgentState::Impl::Linger(const TrainerRecord& record,
                              const std::string& reason, bool straggled,
                              const std::vector<std::string>& unreached) {
  outbox_.ToCoordinator(protocol::TrainerLeft{
      record.group, record.rank, record.trainer.attach_id, reason,
      /*generation_ended=*/true, /*may_return=*/true, unreached, straggled});
  const TrainerId id = record.id;
  lingering_[id] = {record.group, record.rank, record.trainer.attach_id, reason,
                    straggled};
  trainers_.Remove(id);
}

void AgentState::Impl::On(const TrainerGone& event, absl::Duration now) {
  if (ForgetLingering(event.trainer, event.reason)) return;
  DropTrainer(event.trainer, event.reason, now);
}

void AgentState::Impl::On(const FormerTrainerLeft& event, absl::Duration) {
  outbox_.Log(absl::StrCat("rank ", event.rank, " of ", event.group.ToString(),
                           ", which this agent had before it was started "
                           "again, is gone: ",
                           event.reason));
  former_.push_back({event.group, event.rank, event.attach_id, event.reason,
                     /*generation_ended=*/false, /*may_return=*/false});
  if (former_.size() > kMaxHistory) former_.pop_front();
  outbox_.ToCoordinator(former_.back());
}

void AgentState::Impl::TellLeft(const TrainerRecord& record,
                                const std::string& reason, bool may_return) {
  const protocol::TrainerLeft left{record.group,
                                   record.rank,
                                   record.trainer.attach_id,
                                   reason,
                                   /*generation_ended=*/false,
                                   may_return};
  if (reason == kDetached && record.generation != 0) KeepDetached(left);
  outbox_.ToCoordinator(left);
}

void AgentState::Impl::KeepDetached(const protocol::TrainerLeft& left) {
  detached_[left.group].push_back(left);
  if (detached_.size() <= kMaxHistory) return;
  for (const auto& [group, all] : detached_) {
    if (group == left.group || groups_.count(group) > 0) continue;
    detached_.erase(group);
    return;
  }
}

void AgentState::Impl::FailTrainer(TrainerId id, wire::Code code,
                                   const std::string& text) {
  outbox_.ToTrainer(id, MakeFailed(kNoStep, code, true, text));
}

// After this agent was frozen a trainer's new connection may be seen before the
// end of its old one.
void AgentState::Impl::DropReplaced(const TrainerRecord& record,
                                    absl::Duration now) {
  const TrainerRecord* old = trainers_.FindReplaced(record);
  if (old == nullptr) return;
  const TrainerId id = old->id;
  DropTrainer(id, "attached again", now, /*may_return=*/true);
  outbox_.effects.emplace_back(CloseTrainer{id});
}

void AgentState::Impl::DropTrainer(TrainerId id, const std::string& reason,
                                   absl::Duration now, bool may_return) {
  TrainerRecord* record = trainers_.Find(id);
  if (record == nullptr) return;
  outbox_.Log(absl::StrCat("rank ", record->rank, " of ",
                           record->group.ToString(), " is gone: ", reason));
  GroupState* group = RunningGroupOf(*record);
  if (group != nullptr) group->Report();
  TellLeft(*record, reason, may_return);
  const uint32_t rank = record->rank;
  if (group != nullptr) {
    const bool detached = reason == kDetached;
    group->DropTrainer(id, detached,
                       absl::StrCat("rank ", rank, " at agent ", options_.agent,
                                    " (site ", options_.site, ")",
                                    detached ? protocol::kEndedInOrder : " ",
                                    detached ? group->AfterText() : reason),
                       now);
  }
  trainers_.Remove(id);
}

void AgentState::Impl::On(const Tick& event, absl::Duration now) {
  for (auto& [id, group] : groups_) group->Tick(event.slowest_link, now);
}

// Lets go of the trainers of generations that ended while an event was handled.
void AgentState::Impl::SweepEnded(absl::Duration now) {
  bool changed = false;
  for (auto it = groups_.begin(); it != groups_.end();) {
    if (!it->second->ended()) {
      ++it;
      continue;
    }
    const GroupState& group = *it->second;
    last_reports_[it->first] = group.MakeReport();
    for (const GroupState::LocalTrainer& trainer : group.trainers()) {
      TrainerRecord* record = trainers_.Find(trainer.id);
      if (record == nullptr) continue;
      if (group.may_rejoin()) {
        Linger(*record, group.end_reason(), trainer.straggler,
               group.unreached());
        continue;
      }
      outbox_.ToCoordinator(protocol::TrainerLeft{
          record->group, record->rank, record->trainer.attach_id,
          group.end_reason(), /*generation_ended=*/true, /*may_return=*/false,
          group.unreached()});
      outbox_.effects.emplace_back(CloseTrainer{trainer.id});
      trainers_.Remove(trainer.id);
    }
    if (last_reports_.size() > kMaxHistory) {
      last_reports_.erase(last_reports_.begin());
    }
    if (history_.size() < kMaxHistory || history_.count(it->first) > 0) {
      GroupStatus& status = history_[it->first];
      status.group = it->first;
      group.FillStatus(status);
      status.trainers = 0;
    }
    ended_.push_back({std::move(it->second), now + options_.step_deadline});
    it = groups_.erase(it);
    changed = true;
  }
  while (!ended_.empty() &&
         (ended_.front().until <= now || ended_.size() > kMaxEnded)) {
    ended_.pop_front();
    changed = true;
  }
  if (changed) UpdatePeers(now);
}

std::vector<GroupStatus> AgentState::Impl::Status() const {
  std::map<protocol::GroupId, GroupStatus> statuses = history_;
  for (const auto& [id, record] : trainers_.all()) {
    GroupStatus& status = statuses[record.group];
    status.group = record.group;
    status.phase = "waiting";
    ++status.trainers;
  }
  for (const auto& [id, group] : groups_) {
    statuses[id].group = id;
    group->FillStatus(statuses[id]);
  }
  std::vector<GroupStatus> result;
  for (auto& [id, status] : statuses) result.push_back(std::move(status));
  return result;
}

}  // namespace pactrain::agent
