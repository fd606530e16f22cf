// The life of an attempt: buckets, vote or abort, and what follows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/core/group_state.h"
#include "agent/core/onset.h"
#include "agent/core/wire_convert.h"
#include "base/check.h"
#include "base/weakened.h"
#include "protocol/limits.h"

namespace pactrain::agent {

using protocol::Abort;
using protocol::Cause;
using protocol::Certificate;
using protocol::CommitVote;
using protocol::OnShrink;

namespace {

constexpr size_t kMaxRefused = 16;  // Steps whose reason is kept.
// Bytes per second above which levels are packed: shortening them takes longer
// than sending what it saves. Seen on two cores that an emulated network
// shares: at 100 Mbps a step took 0.94 of the time with it, at 500 Mbps as
// long, at 1 Gbps 1.14.
constexpr double kFastLink = 50e6;
// For a decision that would be due.
constexpr absl::Duration kMaxAwaited = absl::Seconds(2);

}  // namespace

void GroupState::BeginAttempt(absl::Duration now) {
  ballot_ = Ballot(names_);
  exchange_ = NewExchange();
  told_elements_ = 0;
  own_vote_.reset();
  own_abort_.reset();
  for (Peer& peer : peers_) peer.late.clear();
  last_progress_ = now;
  received_at_ = -absl::InfiniteDuration();
  OpenBuckets(now);
  ReplayEarly(now);
}

// What was held for this attempt is taken, what comes after it still held.
void GroupState::ReplayEarly(absl::Duration now) {
  const uint64_t step = step_;
  const uint16_t attempt = attempt_;
  early_bytes_ = 0;
  for (IncomingFrame& frame : std::exchange(early_frames_, {})) {
    // Counted when they came.
    const size_t bytes = frame.payload.bytes.size();
    if (schedule_.SiteOf(frame.member) != schedule_.site()) {
      counters_.received_bytes -= bytes + protocol::kHeaderBytes;
      step_received_bytes_ -= bytes + protocol::kHeaderBytes;
    }
    OnFrame(std::move(frame), now);
  }
  for (size_t m = 0; m < peers_.size(); ++m) {
    for (auto& control : std::exchange(peers_[m].early, {})) {
      // A replayed abort may resolve this attempt and begin the next one; what
      // is left is then taken as if it came now.
      OnControl(static_cast<int>(m), control, now);
    }
  }
  if (step == step_ && attempt == attempt_) MaybeVote(now);
}

void GroupState::OpenBuckets(absl::Duration now) {
  if (ended_ || own_abort_.has_value() || !AllReady()) return;
  for (const LocalStep::Bucket& bucket : local_.buckets()) {
    if (bucket.sum == nullptr) continue;
    std::vector<OutgoingFrame> out;
    const absl::Duration begin = options_->stopwatch();
    std::optional<Problem> problem = OpenBucket(bucket, out);
    if (!problem) {
      problem = exchange_.Extend(bucket.context.bucket, bucket.summed, out);
    }
    telemetry_.Summed(options_->stopwatch() - begin);
    SendFrames(std::move(out));
    if (problem) {
      AbortAttempt(problem->cause, problem->detail, now);
      return;
    }
  }
  const int stranger =
      local_.complete() ? exchange_.HeldBeyond(local_.buckets().size()) : -1;
  if (stranger >= 0) {
    AbortAttempt(
        Cause::kLayout,
        absl::StrCat(names_[stranger], " has more than the ",
                     local_.buckets().size(), " buckets of ", names_[me()]),
        now);
    return;
  }
  TellWritten();
  MaybeVote(now);
}

std::optional<Problem> GroupState::OpenBucket(const LocalStep::Bucket& bucket,
                                              std::vector<OutgoingFrame>& out) {
  if (exchange_.opened(bucket.context.bucket)) return std::nullopt;
  protocol::BucketContext context = bucket.context;
  if (exact_) context.codec = protocol::Codec::kFp32;
  auto* result = reinterpret_cast<float*>(results_ + bucket.offset);
  return exchange_.Open(context, bucket.sum,
                        absl::MakeSpan(result, context.elements), out);
}

void GroupState::SendFrames(std::vector<OutgoingFrame> frames) {
  for (OutgoingFrame& frame : frames) {
    const protocol::BucketContext* context =
        exchange_.ContextOf(frame.header.bucket);
    if (schedule_.SiteOf(frame.member) != schedule_.site()) {
      const size_t bytes = frame.header.bytes + protocol::kHeaderBytes;
      counters_.sent_bytes += bytes;
      step_sent_bytes_ += bytes;
      const double kept = 4.0 * frame.header.elements;
      counters_.sent_kept_bytes += static_cast<uint64_t>(kept);
      const auto dense =
          static_cast<uint64_t>(context->mask_digest.empty()
                                    ? kept
                                    : kept * trainers_[0].masks.dense_per_kept);
      counters_.sent_dense_bytes += dense;
      step_dense_bytes_ += dense;
    }
    outbox_->ToPeer(generation_.members[frame.member].agent, generation_.group,
                    *context, frame.header, std::move(frame.payload));
  }
}

void GroupState::AbortAttempt(Cause cause, const std::string& detail,
                              absl::Duration now) {
  if (ended_ || own_abort_.has_value()) return;
  own_abort_ = MakeAbort(cause, detail);
  aborted_at_ = now;
  Touch(now);
  PT_CHECK(ballot_.AddAbort(me(), *own_abort_));
  TellAll(*own_abort_);
  Resolve(now);
}

Abort GroupState::MakeAbort(Cause cause, const std::string& detail) const {
  Abort abort;
  abort.generation = digest_;
  abort.model = generation_.group.model;
  abort.step = step_;
  abort.attempt = attempt_;
  abort.cause = cause;
  abort.detail = detail.substr(0, wire::kTextBytes / 4);
  abort.voted = own_vote_.has_value();
  if (own_vote_) abort.vote = *own_vote_;
  return abort;
}

void GroupState::MaybeVote(absl::Duration now) {
  if (ended_ || own_vote_.has_value() ||
      (own_abort_.has_value() && !PT_WEAKENED(VoteAfterAbort)) ||
      !local_.complete() ||
      exchange_.done_buckets() != local_.buckets().size()) {
    return;
  }
  telemetry_.Exchanged(LastHeard(), now);
  if (AwaitsDecision(now)) return;
  CommitVote vote;
  vote.generation = digest_;
  vote.model = generation_.group.model;
  vote.step = step_;
  vote.attempt = attempt_;
  vote.result = exchange_.ResultDigest();
  vote.parameters = local_.parameters();
  vote.candidate = switch_.NameCandidate(CandidateIsDue());
  own_vote_ = vote;
  PT_CHECK(ballot_.AddVote(me(), vote) || PT_WEAKENED(VoteAfterAbort));
  last_progress_ = now;
  TellAll(vote);
  Resolve(now);
}

void GroupState::Resolve(absl::Duration now) {
  if (ended_) return;
  const Resolution resolution = ballot_.Resolve();
  switch (resolution.kind) {
    case Resolution::Kind::kOpen:
      break;
    case Resolution::Kind::kCommitted:
      if (PT_WEAKENED(CommitWithoutOneVote) && !own_vote_) break;
      Commit(resolution.candidate, now);
      break;
    case Resolution::Kind::kFailed:
      FailAttempt(resolution, now);
      break;
    case Resolution::Kind::kDisagreed:
      if (resolution.cause == Cause::kParameters) {
        BeginEnd(resolution.cause, resolution.detail, now);
      } else {
        AbortAttempt(resolution.cause, resolution.detail, now);
      }
  }
  EndIfResolved(now);
}

bool GroupState::IsBroadcast() const {
  const auto& buckets = local_.buckets();
  return std::any_of(buckets.begin(), buckets.end(), [](const auto& bucket) {
    return bucket.context.op != protocol::Op::kSum;
  });
}

bool GroupState::IsCompacted() const {
  const auto& buckets = local_.buckets();
  return !dense_ && !IsBroadcast() &&
         std::none_of(buckets.begin(), buckets.end(), [](const auto& bucket) {
           return bucket.context.mask_digest.empty();
         });
}

// Never with a broadcast: trainers look at decisions after their own steps.
bool GroupState::CandidateIsDue() const {
  const auto& candidate = switch_.candidate_decision();
  return candidate && !IsBroadcast() &&
         IsDue(generation_.onset, switch_.in_force(), *candidate,
               NextGradientStep());
}

bool GroupState::AwaitsDecision(absl::Duration now) {
  std::optional<protocol::Decision> due;
  if (CandidateIsDue()) due = switch_.candidate_decision();
  if (awaited_in_vain_ || IsBroadcast() ||
      !IsAwaited(generation_.onset, switch_.in_force(), due, Masks(),
                 NextGradientStep())) {
    return false;
  }
  if (!awaits_since_) {
    awaits_since_ = now;
    Report();  // The coordinator may not know yet what is in force.
  }
  const absl::Duration limit =
      std::min(kMaxAwaited, options_->stall_timeout() / 2);
  if (now - *awaits_since_ < limit) return true;
  awaited_in_vain_ = true;
  outbox_->Warn(absl::StrFormat(
      "%s: step %d waited %s for a decision that was to come in force after "
      "it; now that will be with another step than in an equal run",
      generation_.group.ToString(), step_, absl::FormatDuration(limit)));
  return false;
}

bool GroupState::Measures() const {
  return schedule_.sites() > 1 && Telemetry::Measures(step_, gradient_steps_);
}

StepExchange GroupState::NewExchange() const {
  // A generation that goes on with a state goes on in the dither, too.
  const uint64_t first = generation_.donor ? 0 : generation_.base_step;
  return StepExchange({&schedule_, &names_, step_, step_ - first, attempt_,
                       Measures() && !dense_ && !exact_,
                       slowest_link_ < kFastLink});
}

// Of the committed step, with the decision that was in force for it.
void GroupState::NoteNoise() {
  if (!Measures() || dense_ || exact_ || IsBroadcast()) return;
  const ExchangeNoise noise = exchange_.Noise();
  // Gradients that are not finite are skipped by the optimizer, too.
  if (!std::isfinite(local_.squares() + noise.site_squares +
                     noise.encoded_squares + noise.error_squares +
                     noise.clip_squares + noise.total_squares)) {
    return;
  }
  telemetry_.Add({step_, switch_.in_force().version, local_.squares(),
                  noise.site_squares, noise.encoded_squares,
                  noise.error_squares, noise.clip_squares,
                  noise.total_squares});
}

const protocol::Decision& GroupState::NextDecision() const {
  const auto& candidate = switch_.candidate_decision();
  return PT_WEAKENED(InForceEarlyAtOne) && me() == 0 && candidate
             ? *candidate
             : switch_.in_force();
}

void GroupState::Commit(uint64_t candidate, absl::Duration now) {
  NoteNoise();
  switch_.OnResolved(candidate);
  past_ = PastAttempt{step_, attempt_, std::nullopt, std::nullopt};
  past_->certificate =
      Certificate{digest_,           generation_.group.model,   step_, attempt_,
                  own_vote_->result, switch_.in_force().version};
  auto committed = MakeMessage<wire::Committed>(wire::Kind::kCommitted);
  committed.step = step_;
  committed.attempt = attempt_;
  committed.world_size = generation_.world_size;
  committed.sent_bytes = step_sent_bytes_;
  committed.received_bytes = step_received_bytes_;
  committed.dense_bytes = step_dense_bytes_;
  committed.next = ToWire(NextDecision());
  if (!PT_WEAKENED(ResultsNotShared)) ShareResults();
  TellTrainers(committed);
  if (candidate != 0) {
    const protocol::Decision& now_holds = switch_.in_force();
    outbox_->Log(absl::StrFormat(
        "%s: decision %d (%s %s) holds from step %d: %s",
        generation_.group.ToString(), now_holds.version,
        protocol::ModeName(now_holds.mode),
        protocol::CodecName(now_holds.codec), step_ + 1, now_holds.reason));
  }
  ++counters_.committed_count;
  if (dense_) ++counters_.dense_steps;
  committed_step_ = step_;
  if (!first_compacted_step_ && IsCompacted()) first_compacted_step_ = step_;
  const bool early = !IsBroadcast() && Telemetry::IsEarly(gradient_steps_);
  if (IsBroadcast()) {
    telemetry_.Drop();  // Nobody computes before it: it says nothing of a pace.
  } else {
    ++gradient_steps_;
    if (open_since_) telemetry_.Commit(*open_since_, now);
  }
  const uint64_t count = counters_.committed_count;
  NextStep(now);
  // The coordinator is to choose a codec after few steps. The next commit, if
  // it came at once, has said so.
  if (early && count == counters_.committed_count) Report();
}

// Trainers of one launch share a result region; each other launch has its own.
void GroupState::ShareResults() {
  std::set<uint8_t*> regions;
  for (const LocalTrainer& trainer : trainers_) {
    if (!trainer.gone) regions.insert(trainer.memory.result.data());
  }
  for (uint8_t* to : regions) {
    if (to != results_) CopyResults(to);
  }
}

void GroupState::CopyResults(uint8_t* to) const {
  for (const LocalStep::Bucket& bucket : local_.buckets()) {
    std::memcpy(to + bucket.offset, results_ + bucket.offset,
                bucket.context.elements * 4);
  }
}

void GroupState::FailAttempt(const Resolution& resolution, absl::Duration now) {
  switch_.OnResolved(0);
  ++counters_.failed_attempts[static_cast<size_t>(resolution.cause)];
  ++failed_attempts_;
  if (ending_.has_value()) return;  // Resolve() ends it: nobody committed.
  outbox_->Log(absl::StrFormat("%s: step %d attempt %d failed (%s): %s",
                               generation_.group.ToString(), step_, attempt_,
                               protocol::CauseName(resolution.cause),
                               resolution.detail));
  if (resolution.cause == Cause::kDeadline ||
      resolution.cause == Cause::kLayout ||
      attempt_ >= protocol::kMaxAttempts) {
    RefuseStep(resolution, now);
    return;
  }
  past_ = PastAttempt{step_, attempt_, std::nullopt, own_abort_};
  ++attempt_;
  if (resolution.cause == Cause::kResultDigest && !PT_WEAKENED(NoExactRetry)) {
    exact_ = true;
  }
  if (resolution.cause == Cause::kMask && !dense_) MakeDense(resolution.detail);
  BeginAttempt(now);
}

void GroupState::MakeDense(const std::string& reason) {
  dense_ = true;
  dense_reason_ = reason;
  local_.Reset(switch_.in_force(), attempt_, true, false);
  for (const LocalTrainer& trainer : trainers_) {
    if (!trainer.gone && trainer.opened_step == step_) TellDense(trainer);
  }
  Tell(collective_.OnAttempt());
}

void GroupState::TellDense(const LocalTrainer& trainer) {
  auto resubmit = MakeMessage<wire::Resubmit>(wire::Kind::kResubmit);
  resubmit.step = step_;
  resubmit.attempt = local_.attempt();
  SetText(dense_reason_, resubmit.text);
  outbox_->ToTrainer(trainer.id, resubmit);
}

void GroupState::RefuseStep(const Resolution& resolution, absl::Duration now) {
  past_ = PastAttempt{step_, attempt_, std::nullopt, own_abort_};
  telemetry_.Drop();
  ++counters_.refused_steps;
  const bool layout = resolution.cause == Cause::kLayout;
  const std::string text = absl::StrFormat(
      "step %d was applied at no rank (attempt %d of %d, cause: %s): %s.\n%s",
      step_, attempt_, protocol::kMaxAttempts,
      protocol::CauseName(resolution.cause), resolution.detail,
      layout
          ? "Give all ranks the same model and the same bucket sizes. If one "
            "of the two is a broadcast, a rank called sync_buffers() or "
            "sync_masks() where another did a step: call it at the same "
            "step on all ranks."
          : "The session goes on: do the batch again, or leave it out.");
  outbox_->Warn(absl::StrCat(generation_.group.ToString(), ": ", text));
  refused_[step_] = text;
  if (refused_.size() > kMaxRefused) refused_.erase(refused_.begin());
  const wire::Failed failed =
      MakeFailed(step_, wire::Code::kStepNotApplied, false, text);
  for (const LocalTrainer& trainer : trainers_) {
    if (!trainer.gone && trainer.opened_step == step_) {
      outbox_->ToTrainer(trainer.id, failed);
    }
  }
  NextStep(now);
}

void GroupState::NextStep(absl::Duration now) {
  Tell(collective_.OnAttempt());
  ++step_;
  attempt_ = 1;
  dense_ = false;
  exact_ = false;
  open_since_.reset();
  late_logged_ = false;
  late_.clear();
  step_sent_bytes_ = 0;
  step_received_bytes_ = 0;
  step_dense_bytes_ = 0;
  awaits_since_.reset();
  local_.Reset(NextDecision(), 1, false, Measures());
  BeginAttempt(now);
  if (ending_) AbortAttempt(ending_->cause, ending_->detail, now);
}

void GroupState::BeginEnd(Cause cause, const std::string& reason,
                          absl::Duration now) {
  if (ended_) return;
  if (!ending_) {
    ending_ = Problem{cause, reason};
    ending_since_ = now;
  }
  AbortAttempt(ending_->cause, ending_->detail, now);
  EndIfResolved(now);
}

void GroupState::EndIfResolved(absl::Duration now) {
  if (!ending_ || ended_) return;
  const Resolution::Kind kind = ballot_.Resolve().kind;
  // Without this member's vote, or with a refusal, nobody can have committed.
  if (!own_vote_ || ballot_.HasRefusal() || kind == Resolution::Kind::kFailed ||
      kind == Resolution::Kind::kDisagreed) {
    End(true);
  } else if (now - ending_since_ >= options_->resolution_timeout()) {
    End(PT_WEAKENED(EndSaysOutcomeKnown));
  }
}

void GroupState::EndQuietly() {
  ended_ = true;
  end_reason_ = *detached_;
  // For those who go on nevertheless.
  own_abort_ = MakeAbort(Cause::kMemberLost, *detached_);
}

std::string GroupState::AfterText() const {
  const uint64_t step = MakeReport().committed_step;
  return step == 0 ? " before the first step"
                   : absl::StrCat(" after step ", step);
}

void GroupState::EndNow() {
  if (!ended_) End(false);
}

void GroupState::End(bool outcome_known) {
  // Whatever was voted for here: nobody has committed it.
  if (outcome_known && !PT_WEAKENED(FailedVoteReported)) own_vote_.reset();
  Report();
  ended_ = true;
  ++counters_.ended_generations;
  const bool resync = !outcome_known || ending_->cause == Cause::kParameters;
  const bool straggler = ending_->cause == Cause::kStraggler;
  may_rejoin_ = generation_.on_shrink != OnShrink::kAbort &&
                (straggler || ending_->cause == Cause::kMemberLost);
  for (size_t i = 0; i < trainers_.size(); ++i) {
    trainers_[i].straggler = straggler && !local_.Finished(static_cast<int>(i));
  }
  end_reason_ = ending_->detail;
  const bool left = absl::StrContains(end_reason_, protocol::kEndedInOrder);
  const std::string text = absl::StrCat(
      local_.opened()
          ? absl::StrCat("step ", step_,
                         outcome_known ? " was applied at no rank: "
                                       : " may have been applied elsewhere: ")
          : "",
      absl::StrFormat("generation %d ended (%s): ", generation_.number,
                      protocol::CauseName(ending_->cause)),
      end_reason_, left ? ": unequal numbers of batches?\n" : ".\n",
      may_rejoin_ ? "Attach again; ranks may come and go."
      : left ? "Give all ranks equally many batches, or train in DDP's join()."
      : resync ? "Load the last checkpoint at all ranks and start them again."
               : "Start all ranks again from the last checkpoint.");
  outbox_->Warn(absl::StrCat(generation_.group.ToString(), ": ", text));
  wire::Failed failed = MakeFailed(
      local_.opened() ? step_ : kNoStep,
      resync ? wire::Code::kResyncRequired : wire::Code::kStepNotApplied, true,
      text);
  failed.may_rejoin = may_rejoin_;
  TellTrainers(failed);
  // Nothing of an ended generation is written or sent any more.
  exchange_ = NewExchange();
  early_frames_.clear();
}

}  // namespace pactrain::agent
