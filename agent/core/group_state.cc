// Trainers and decisions; the rest is in group_peers, group_attempts,
// group_tick.
#include "agent/core/group_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/core/wire_convert.h"
#include "base/weakened.h"

namespace pactrain::agent {
namespace {

std::vector<std::string> NamesOf(const protocol::Generation& generation) {
  std::vector<std::string> names;
  for (const protocol::Member& member : generation.members) {
    names.push_back(
        absl::StrCat("agent ", member.agent, " (site ", member.site, ")"));
  }
  return names;
}

std::vector<LocalStep::Member> SlotsOf(
    const std::vector<GroupState::LocalTrainer>& trainers) {
  std::vector<LocalStep::Member> members;
  for (const auto& trainer : trainers) {
    members.push_back({trainer.rank, trainer.memory.slot});
  }
  return members;
}

std::vector<Collective::Member> NcclOf(
    const std::vector<GroupState::LocalTrainer>& trainers) {
  std::vector<Collective::Member> members;
  for (const auto& trainer : trainers) members.push_back(trainer.nccl);
  return members;
}

Collective::Limits LimitsOf(const Options& options) {
  Collective::Limits limits;
  limits.stage = options.straggler_timeout;
  return limits;
}

}  // namespace

GroupState::GroupState(const Options* options, protocol::StartGeneration start,
                       int me, std::vector<LocalTrainer> trainers,
                       Outbox* outbox, absl::Duration now)
    : options_(options),
      generation_(std::move(start.generation)),
      key_(start.key),
      digest_(generation_.ComputeDigest()),
      schedule_(generation_, me),
      names_(NamesOf(generation_)),
      trainers_(std::move(trainers)),
      results_(trainers_[0].memory.result.data()),
      outbox_(outbox),
      peers_(generation_.members.size()),
      switch_(generation_.decision),
      step_(generation_.base_step),
      local_(SlotsOf(trainers_), digest_, generation_.group.model,
             options_->share_out),
      collective_(NcclOf(trainers_), LimitsOf(*options_)),
      exchange_(NewExchange()),
      ballot_(names_),
      last_progress_(now),
      received_at_(-absl::InfiniteDuration()),
      last_repeat_(now),
      last_waiting_(now),
      last_report_(now) {
  for (Peer& peer : peers_) peer.down_since = now;
  local_.Reset(switch_.in_force(), 1, false, Measures());
}

void GroupState::Start(absl::Duration now) {
  for (const LocalTrainer& trainer : trainers_) Attach(trainer);
  Tell(collective_.Begin(now));
  for (size_t m = 0; m < peers_.size(); ++m) {
    const int member = static_cast<int>(m);
    if (member != me() &&
        outbox_->links.IsConnected(generation_.members[m].agent)) {
      OnPeerConnected(member);
    }
  }
  last_progress_ = now;
}

void GroupState::Attach(const LocalTrainer& trainer) {
  auto attached = MakeMessage<wire::Attached>(wire::Kind::kAttached);
  const auto& needy = generation_.needs_state;
  attached.rank = trainer.rank;
  attached.world_size = generation_.world_size;
  attached.donor = generation_.donor.value_or(wire::kNoRank);
  attached.needs_state =
      std::binary_search(needy.begin(), needy.end(), trainer.rank);
  attached.member = static_cast<uint32_t>(me());
  attached.generation = generation_.number;
  attached.lineage = ToWire(generation_.lineage.id);
  attached.committed = generation_.lineage.committed;
  attached.base_step = generation_.base_step;
  attached.slot_bytes = trainer.memory.slot.size();
  attached.result_bytes = trainer.memory.result.size();
  attached.step_deadline_ms =
      static_cast<uint64_t>(absl::ToInt64Milliseconds(options_->step_deadline));
  std::copy(trainer.seat.bytes.begin(), trainer.seat.bytes.end(),
            attached.seat);
  attached.decision = ToWire(switch_.in_force());
  SetText(options_->agent, attached.agent);
  SetText(options_->site, attached.site);
  outbox_->ToTrainer(trainer.id, attached);
}

int GroupState::MemberOf(const std::string& agent) const {
  for (size_t m = 0; m < generation_.members.size(); ++m) {
    if (generation_.members[m].agent == agent) return static_cast<int>(m);
  }
  return -1;
}

int GroupState::TrainerIndex(TrainerId trainer) const {
  for (size_t i = 0; i < trainers_.size(); ++i) {
    if (trainers_[i].id == trainer) return static_cast<int>(i);
  }
  return -1;
}

void GroupState::DropTrainer(TrainerId trainer, bool clean,
                             const std::string& reason, absl::Duration now) {
  const int index = TrainerIndex(trainer);
  if (ended_ || index < 0) return;
  trainers_[index].gone = true;
  Tell(collective_.OnLost(static_cast<size_t>(index)));
  if (!PT_WEAKENED(ResultsOfTheDeadRead)) KeepResults();
  if (!clean || open_since_) {
    BeginEnd(protocol::Cause::kMemberLost, reason, now);
    return;
  }
  if (!detached_) detached_ = reason;
  const bool empty = std::all_of(trainers_.begin(), trainers_.end(),
                                 [](const LocalTrainer& t) { return t.gone; });
  if (empty) EndQuietly();
}

void GroupState::KeepResults() {
  uint8_t* heir = nullptr;
  for (const LocalTrainer& trainer : trainers_) {
    if (trainer.gone) continue;
    uint8_t* const region = trainer.memory.result.data();
    if (region == results_) return;
    if (heir == nullptr) heir = region;
  }
  // Before the own vote nothing of them is needed: the generation ends at once.
  if (heir != nullptr && own_vote_) CopyResults(heir);
  results_ = heir;
}

bool GroupState::EndForDetached(absl::Duration now) {
  if (!detached_) return false;
  BeginEnd(protocol::Cause::kMemberLost, *detached_, now);
  return true;
}

void GroupState::AnswerLate(LocalTrainer& trainer, uint64_t step) {
  if (step == step_) return TellDense(trainer);
  auto it = refused_.find(step);
  outbox_->ToTrainer(
      trainer.id,
      MakeFailed(step, wire::Code::kStepNotApplied, false,
                 it != refused_.end() ? it->second
                                      : "the step was refused long ago.\n"
                                        "Do the batch again."));
}

void GroupState::TellTrainers(const decltype(SendTrainer::message)& message) {
  for (const LocalTrainer& trainer : trainers_) {
    if (!trainer.gone) outbox_->ToTrainer(trainer.id, message);
  }
}

void GroupState::Tell(const Collective::Says& says) {
  for (const Collective::Say& say : says) {
    const LocalTrainer& trainer = trainers_[say.member];
    if (trainer.gone) continue;
    std::visit(
        [&](const auto& message) { outbox_->ToTrainer(trainer.id, message); },
        say.message);
  }
  const Collective::Phase phase = collective_.phase();
  if (std::exchange(told_phase_, phase) == phase) return;
  const std::string group = generation_.group.ToString();
  if (phase == Collective::Phase::kReady) {
    outbox_->Log(absl::StrFormat("%s: %d trainers sum buckets by NCCL", group,
                                 trainers_.size()));
  } else if (phase == Collective::Phase::kOff) {
    outbox_->Warn(absl::StrFormat(
        "%s: gradients of this node go by the host, not by NCCL: %s", group,
        collective_.reason()));
  }
}

Collective::Says GroupState::OnStaged(size_t index, const wire::Staged& staged,
                                      absl::Duration now) {
  if (EndForDetached(now)) return {};
  // Sent before the trainer knew that the step is refused or made dense.
  if (staged.step < step_ ||
      (staged.step == step_ && staged.attempt < local_.attempt())) {
    auto word = MakeMessage<wire::BucketWord>(wire::Kind::kByHost);
    word.step = staged.step;
    word.attempt = staged.attempt;
    word.bucket = staged.bucket;
    return {{index, word}};
  }
  // As a submit: the others are waited for from now on.
  trainers_[index].opened_step = staged.step;
  Touch(now);
  last_progress_ = now;
  return collective_.OnStaged(index, staged, now);
}

void GroupState::OnCollective(TrainerId trainer,
                              const CollectiveMessage& message,
                              absl::Duration now) {
  if (ended_) return;
  const auto index = static_cast<size_t>(TrainerIndex(trainer));
  if (const auto* id = std::get_if<wire::CollectiveId>(&message)) {
    Tell(collective_.OnId(index, *id));
  } else if (const auto* opened = std::get_if<wire::Opened>(&message)) {
    Tell(collective_.OnOpened(index, *opened));
  } else if (const auto* staged = std::get_if<wire::Staged>(&message)) {
    Tell(OnStaged(index, *staged, now));
  } else if (const auto* reduced = std::get_if<wire::BucketWord>(&message)) {
    Tell(collective_.OnReduced(index, *reduced, now));
  } else {
    Tell(
        collective_.OnFailed(index, std::get<wire::CollectiveFailed>(message)));
  }
}

void GroupState::TellWritten() {
  const StepExchange::Written& written = exchange_.written();
  if (written.total < told_elements_ + options_->told_elements) return;
  told_elements_ = written.total;
  auto message = MakeMessage<wire::Written>(wire::Kind::kWritten);
  message.step = step_;
  message.attempt = attempt_;
  message.bucket = written.bucket;
  message.elements = written.elements;
  // The other regions have nothing before the commit: ShareResults().
  for (const LocalTrainer& trainer : trainers_) {
    if (!trainer.gone && trainer.memory.result.data() == results_) {
      outbox_->ToTrainer(trainer.id, message);
    }
  }
}

int GroupState::OpenAttempt() const {
  const bool heard =
      std::any_of(peers_.begin(), peers_.end(),
                  [&](const Peer& peer) { return peer.heard_step >= step_; });
  return open_since_ || heard ? attempt_ : 0;
}

void GroupState::Touch(absl::Duration now) {
  if (open_since_.has_value()) return;
  open_since_ = now;
  last_progress_ = now;
}

absl::Status GroupState::OnSubmit(TrainerId trainer, const wire::Submit& submit,
                                  absl::Duration now) {
  if (ended_ || EndForDetached(now)) return absl::OkStatus();
  LocalTrainer& sender = trainers_[TrainerIndex(trainer)];
  const bool opens = sender.opened_step != submit.step;
  sender.opened_step = submit.step;
  // Sent before the trainer knew that the step is refused or made dense.
  if (submit.step < step_ ||
      (submit.step == step_ && submit.attempt < local_.attempt())) {
    if (opens) AnswerLate(sender, submit.step);
    return absl::OkStatus();
  }
  if (submit.step > step_ || submit.attempt > local_.attempt()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "Submit names step %d attempt %d; open is step %d attempt %d",
        submit.step, submit.attempt, step_, local_.attempt()));
  }
  const auto index = static_cast<size_t>(TrainerIndex(trainer));
  const bool taken =
      collective_.IsTaken(submit.step, submit.attempt, submit.bucket);
  if (taken != (submit.reduced != 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "Submit of rank %d, step %d, bucket %d: reduced is %d, want %d",
        sender.rank, submit.step, submit.bucket, submit.reduced, taken));
  }
  if (!taken) {
    Tell(collective_.OnHostSubmit(index, submit.step, submit.attempt,
                                  submit.bucket));
  }
  const absl::Duration begin = options_->stopwatch();
  auto problem = local_.Add(TrainerIndex(trainer), submit);
  const absl::Duration summed = options_->stopwatch() - begin;
  if (!problem.ok()) return problem.status();
  Touch(now);
  last_progress_ = now;
  if (local_.complete()) telemetry_.Complete(now);
  telemetry_.Summed(summed);
  if (*problem && (*problem)->cause == protocol::Cause::kParameters) {
    BeginEnd((*problem)->cause, (*problem)->detail, now);
  } else if (*problem) {
    AbortAttempt((*problem)->cause, (*problem)->detail, now);
  }
  OpenBuckets(now);
  return absl::OkStatus();
}

std::vector<MaskState> GroupState::Masks() const {
  std::vector<MaskState> masks;
  for (const LocalTrainer& trainer : trainers_) masks.push_back(trainer.masks);
  return masks;
}

std::optional<protocol::PrepareAnswer> GroupState::OnMasks(
    TrainerId trainer, const MaskState& masks) {
  const int index = TrainerIndex(trainer);
  if (index < 0) return std::nullopt;
  trainers_[index].masks = masks;
  awaited_in_vain_ = false;
  const uint64_t candidate = switch_.candidate();
  const std::string reason = switch_.OnMasks(Masks());
  if (reason.empty()) return std::nullopt;
  outbox_->Log(absl::StrCat(generation_.group.ToString(),
                            ": withdrew decision ", candidate, ": ", reason));
  return protocol::PrepareAnswer{generation_.group, generation_.number,
                                 candidate, false, reason};
}

void GroupState::OnDevicePath(TrainerId trainer,
                              const wire::DevicePath& message) {
  const int index = TrainerIndex(trainer);
  if (index < 0) return;
  trainers_[index].path = {.path = message.path,
                           .reason = GetText(message.reason)};
}

std::vector<DevicePath> GroupState::Paths() const {
  std::vector<DevicePath> paths;
  for (const LocalTrainer& trainer : trainers_) {
    paths.push_back(trainer.path);
    paths.back().rank = trainer.rank;
  }
  return paths;
}

void GroupState::OnPrepare(const protocol::Decision& decision,
                           absl::Duration now) {
  const std::string reason = switch_.Prepare(decision, Masks());
  if (!reason.empty()) {
    outbox_->Log(absl::StrCat(generation_.group.ToString(),
                              ": refused decision ", decision.version, ": ",
                              reason));
  }
  outbox_->ToCoordinator(
      protocol::PrepareAnswer{generation_.group, generation_.number,
                              decision.version, reason.empty(), reason});
  if (!reason.empty()) return;
  awaited_in_vain_ = false;
  if (awaits_since_) MaybeVote(now);
}

void GroupState::FillStatus(GroupStatus& status) const {
  status.generation = ended_ ? 0 : generation_.number;
  status.phase = ended_ ? "ended" : "running";
  status.trainers = static_cast<int>(trainers_.size());
  status.next_step = step_;
  status.decision = switch_.in_force();
  status.candidate = switch_.candidate();
  status.committed_count += counters_.committed_count;
  for (size_t cause = 0; cause < protocol::kCauses; ++cause) {
    status.failed_attempts[cause] += counters_.failed_attempts[cause];
  }
  status.refused_steps += counters_.refused_steps;
  status.ended_generations += counters_.ended_generations;
  status.dense_steps += counters_.dense_steps;
  status.sent_bytes += counters_.sent_bytes;
  status.received_bytes += counters_.received_bytes;
  status.sent_kept_bytes += counters_.sent_kept_bytes;
  status.sent_dense_bytes += counters_.sent_dense_bytes;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    status.phases[phase] += telemetry_.phases()[phase];
  }
  status.nccl_ready =
      !ended_ && collective_.phase() == Collective::Phase::kReady;
  status.nccl += collective_.counters();
}

}  // namespace pactrain::agent
