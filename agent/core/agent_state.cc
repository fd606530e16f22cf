#include "agent/core/agent_state.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/wire_convert.h"
#include "base/status_macros.h"

namespace pactrain::agent {
namespace {

constexpr size_t kMaxEnded = 64;     // Generations that still answer.
constexpr size_t kMaxHistory = 256;  // Groups that are over, and remembered.

// What TrainerLeft says of one that ended its session itself.
constexpr char kDetached[] = "detached";

wire::Code CodeOf(const absl::Status& status) {
  if (absl::IsAborted(status)) return wire::Code::kReplaced;
  return absl::IsInvalidArgument(status) ? wire::Code::kInvalidArgument
                                         : wire::Code::kRefused;
}

// Adds to a vote what the one before it tells of its last change; `step` is
// open.
void NoteChange(const std::vector<protocol::MaskVote>& before, uint64_t step,
                protocol::MaskVote& vote) {
  for (const protocol::MaskVote& last : before) {
    if (last.generation != vote.generation || last.rank != vote.rank) continue;
    const bool same = last.mask_digest == vote.mask_digest &&
                      last.steps_unchanged <= vote.steps_unchanged;
    vote.changed_step = same ? last.changed_step : std::optional(step);
    if (same && vote.moved.empty()) vote.moved = last.moved;
  }
}

// Whether all of its generation that are here have voted after its step, and
// for the same: where masks move each votes twice after it.
bool HaveVoted(const protocol::LocalTrainers& local,
               const protocol::MaskVote& vote) {
  return std::count_if(local.votes.begin(), local.votes.end(),
                       [&](const protocol::MaskVote& other) {
                         return other.after_steps == vote.after_steps &&
                                other.mask_digest == vote.mask_digest;
                       }) >=
         std::count_if(local.here.begin(), local.here.end(),
                       [&](const protocol::TrainerJoined& joined) {
                         return joined.generation == vote.generation;
                       });
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentState>> AgentState::Create(
    const Options& options) {
  RETURN_IF_ERROR(options.Check());
  return std::unique_ptr<AgentState>(new AgentState(options));
}

absl::StatusOr<TrainerRecord> AgentState::Check(
    const wire::Hello& hello) const {
  ASSIGN_OR_RETURN(TrainerRecord record, trainers_.Check(hello));
  const auto local = local_.find(record.group);
  if (local != local_.end() && !protocol::HasRoom(local->second)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "agent ", options_.agent, " has ", protocol::kMaxLocalTrainers,
        " trainers of job ", record.group.ToString(), ", its limit"));
  }
  return record;
}

absl::StatusOr<AgentState::HelloGrant> AgentState::CheckHello(
    const wire::Hello& hello) const {
  ASSIGN_OR_RETURN(TrainerRecord record, Check(hello));
  return HelloGrant{record.bytes, record.region};
}

Effects AgentState::Handle(const Event& event, absl::Duration now) {
  std::visit([&](const auto& e) { On(e, now); }, event);
  SweepEnded(now);
  TellChanged();
  return std::exchange(outbox_.effects, {});
}

void AgentState::Note(const protocol::TrainerJoined& joined) {
  if (protocol::Add(joined, local_[joined.group])) {
    changed_.insert(joined.group);
  }
}

void AgentState::Note(const protocol::TrainerLeft& left) {
  if (protocol::Add(left, local_[left.group])) changed_.insert(left.group);
}

void AgentState::Note(const protocol::StepReport& report) {
  protocol::LocalTrainers& local = local_[report.group];
  if (local.report == report) return;
  local.report = report;
  changed_.insert(report.group);
}

const protocol::TrainerLeft* AgentState::FindLeft(
    const protocol::GroupId& group, const protocol::Digest& attach_id) const {
  const auto local = local_.find(group);
  return local == local_.end() ? nullptr
                               : protocol::FindLeft(local->second, attach_id);
}

void AgentState::TellVotes() {
  changed_.merge(voted_);
  TellChanged();
}

void AgentState::TellChanged() {
  for (const protocol::GroupId& group : std::exchange(changed_, {})) {
    voted_.erase(group);
    protocol::LocalTrainers& local = local_[group];
    local.group = group;
    local.revision = ++revision_;
    outbox_.ToCoordinator(local);
  }
  if (local_.size() > kMaxHistory) ForgetGroups();
}

void AgentState::ForgetGroups() {
  size_t over = 0;
  const auto is_over = [](const protocol::LocalTrainers& local) {
    return local.here.empty() &&
           std::none_of(local.left.begin(), local.left.end(),
                        [](const auto& left) { return left.may_return; });
  };
  for (const auto& [group, local] : local_) over += is_over(local);
  for (auto it = local_.begin(); it != local_.end() && over > kMaxHistory;) {
    const bool goes = is_over(it->second);
    over -= goes;
    it = goes ? local_.erase(it) : ++it;
  }
}

void AgentState::On(const TrainerHello& event, absl::Duration now) {
  auto record = Check(event.hello);
  if (record.ok()) DropReplaced(*record, now);
  absl::Status status = record.status();
  if (status.ok() && (event.memory.slot.size() != record->bytes ||
                      event.memory.result.size() != record->bytes)) {
    status =
        absl::FailedPreconditionError("no memory was made for the trainer");
  }
  if (!status.ok()) {
    if (refusals_.IsNews(std::string(status.message()), now)) {
      outbox_.Warn(absl::StrCat("refused a trainer: ", status.message()));
    }
    outbox_.ToTrainer(
        event.trainer,
        MakeFailed(kNoStep, CodeOf(status), true,
                   absl::StrCat(status.message(),
                                absl::IsAborted(status)
                                    ? kReplacedAdvice
                                    : ".\nCorrect it and attach again.")));
    outbox_.effects.emplace_back(CloseTrainer{event.trainer});
    return;
  }
  record->id = event.trainer;
  record->memory = event.memory;
  record->trainer.proof = event.proof;
  outbox_.Log(absl::StrCat("rank ", record->trainer.rank, " of ",
                           record->group.ToString(), " attached"));
  Note(protocol::TrainerJoined{record->group, record->trainer, 0});
  if (!outbox_.coordinator_connected) {
    outbox_.ToTrainer(event.trainer,
                      MakeWaiting(absl::StrCat("waiting for the coordinator: ",
                                               coordinator_reason_)));
  }
  trainers_.Add(*std::move(record));
}

GroupState* AgentState::RunningGroupOf(const TrainerRecord& record) {
  if (record.generation == 0) return nullptr;
  return Running(record.group, record.generation);
}

void AgentState::On(const TrainerMessage& event, absl::Duration now) {
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
  } else if (!status.ok()) {
    // Nothing of it counts.
  } else if (const auto* keep =
                 std::get_if<protocol::KeepByParameter>(&event.message)) {
    group->OnKeep(*keep);
  } else if (const auto* path = std::get_if<wire::DevicePath>(&event.message)) {
    group->OnDevicePath(event.trainer, *path);
  } else {
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

void AgentState::OnVote(const TrainerRecord& record, const wire::Vote& vote,
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
  out.after_steps = group.gradient_steps();
  protocol::LocalTrainers& local = local_[record.group];
  NoteChange(local.votes, group.open_step(), out);
  if (protocol::Add(out, local)) voted_.insert(record.group);
  // All is told at once, so not anew for each of those that vote after the same
  // step: of 64 trainers whose masks move that is 1.3 MiB a step.
  if (HaveVoted(local, out)) TellVotes();
  const auto refusal = group.OnMasks(
      record.id,
      {out.rank, out.layout_digest, out.mask_digest,
       out.steps_unchanged >= out.settle_steps &&
           out.kept_elements < out.elements,
       out.kept_elements == 0 ? 1
                              : static_cast<double>(out.elements) /
                                    static_cast<double>(out.kept_elements)});
  if (!refusal) return;
  TellVotes();  // They are why.
  outbox_.ToCoordinator(*refusal);
}

bool AgentState::ForgetLingering(TrainerId id, const std::string& reason) {
  const auto it = lingering_.find(id);
  if (it == lingering_.end()) return false;
  const auto& [group, attach_id] = it->second;
  // Else it has attached again.
  if (const auto* left = FindLeft(group, attach_id)) {
    Note(protocol::TrainerLeft{group, left->rank, attach_id, reason});
  }
  lingering_.erase(it);
  return true;
}

void AgentState::Linger(const TrainerRecord& record, const std::string& reason,
                        bool straggled,
                        const std::vector<std::string>& unreached) {
  Note(protocol::TrainerLeft{
      record.group, record.rank, record.trainer.attach_id, reason,
      /*generation_ended=*/true, /*may_return=*/true, unreached, straggled});
  const TrainerId id = record.id;
  lingering_[id] = {record.group, record.trainer.attach_id};
  trainers_.Remove(id);
}

void AgentState::On(const TrainerGone& event, absl::Duration now) {
  if (ForgetLingering(event.trainer, event.reason)) return;
  DropTrainer(event.trainer, event.reason, now);
}

void AgentState::On(const FormerTrainerLeft& event, absl::Duration) {
  outbox_.Log(absl::StrCat("rank ", event.rank, " of ", event.group.ToString(),
                           ", which this agent had before it was started "
                           "again, is gone: ",
                           event.reason));
  protocol::TrainerLeft left{event.group, event.rank, event.attach_id,
                             event.reason};
  left.former = true;
  Note(left);
}

void AgentState::FailTrainer(TrainerId id, wire::Code code,
                             const std::string& text) {
  outbox_.ToTrainer(id, MakeFailed(kNoStep, code, true, text));
}

// After this agent was frozen a trainer's new connection may be seen before the
// end of its old one.
void AgentState::DropReplaced(const TrainerRecord& record, absl::Duration now) {
  const TrainerRecord* old = trainers_.FindReplaced(record);
  if (old == nullptr) return;
  const TrainerId id = old->id;
  DropTrainer(id, "attached again", now, /*may_return=*/true);
  outbox_.effects.emplace_back(CloseTrainer{id});
}

void AgentState::DropTrainer(TrainerId id, const std::string& reason,
                             absl::Duration now, bool may_return) {
  TrainerRecord* record = trainers_.Find(id);
  if (record == nullptr) return;
  outbox_.Log(absl::StrCat("rank ", record->rank, " of ",
                           record->group.ToString(), " is gone: ", reason));
  GroupState* group = RunningGroupOf(*record);
  if (group != nullptr) {
    group->Report();
    Note(group->MakeReport());
  }
  Note(protocol::TrainerLeft{record->group, record->rank,
                             record->trainer.attach_id, reason,
                             /*generation_ended=*/false, may_return});
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

void AgentState::On(const Tick& event, absl::Duration now) {
  TellVotes();
  for (auto& [id, group] : groups_) group->Tick(event.slowest_link, now);
}

// Lets go of the trainers of generations that ended while an event was handled.
void AgentState::SweepEnded(absl::Duration now) {
  bool changed = false;
  for (auto it = groups_.begin(); it != groups_.end();) {
    if (!it->second->ended()) {
      ++it;
      continue;
    }
    const GroupState& group = *it->second;
    Note(group.MakeReport());
    std::vector<std::string> unreached = group.unreached();
    for (const GroupState::LocalTrainer& trainer : group.trainers()) {
      TrainerRecord* record = trainers_.Find(trainer.id);
      if (record == nullptr) continue;
      const auto said_once = std::exchange(unreached, {});
      if (group.may_rejoin()) {
        Linger(*record, group.end_reason(), trainer.straggler, said_once);
        continue;
      }
      Note(protocol::TrainerLeft{record->group, record->rank,
                                 record->trainer.attach_id, group.end_reason(),
                                 /*generation_ended=*/true,
                                 /*may_return=*/false, said_once});
      outbox_.effects.emplace_back(CloseTrainer{trainer.id});
      trainers_.Remove(trainer.id);
    }
    if (history_.size() < kMaxHistory || history_.count(it->first) > 0) {
      GroupStatus& status = history_[it->first];
      status.group = it->first;
      group.FillStatus(status);
      status.trainers = 0;
    }
    ended_.push_back({std::move(it->second), now});
    it = groups_.erase(it);
    changed = true;
  }
  while (!ended_.empty() &&
         (now >= ended_.front().at + options_.step_deadline ||
          ended_.size() > kMaxEnded)) {
    ended_.pop_front();
    changed = true;
  }
  if (changed) UpdatePeers(now);
}

int AgentState::OpenAttempt(absl::Duration now) const {
  // Words of an end may be on their way.
  constexpr absl::Duration kLastWords = absl::Seconds(1);
  if (!ended_.empty() && now < ended_.back().at + kLastWords) {
    return protocol::kMaxAttempts;
  }
  int last = 0;
  for (const auto& [id, group] : groups_) {
    last = std::max(last, group->OpenAttempt());
  }
  return last;
}

std::vector<GroupStatus> AgentState::Status() const {
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
