// What the other members say.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/group_state.h"
#include "base/weakened.h"

namespace pactrain::agent {

using protocol::Abort;
using protocol::Cause;
using protocol::Certificate;
using protocol::CommitVote;
using protocol::GroupControl;
using protocol::Late;
using protocol::Ready;

namespace {

// Of one member: its word on the next attempt and on the next step.
constexpr size_t kMaxEarlyControl = 4;

}  // namespace

void GroupState::Tell(int member, decltype(GroupControl::body) body) {
  outbox_->ToPeer(generation_.members[member].agent,
                  GroupControl{generation_.group, std::move(body)});
}

void GroupState::TellAll(const decltype(GroupControl::body)& body) {
  for (size_t m = 0; m < peers_.size(); ++m) {
    if (static_cast<int>(m) != me()) Tell(static_cast<int>(m), body);
  }
}

// An abort holds the vote, so one of them says everything. One whose trainer
// has detached is not late: a step that is opened ends the generation.
void GroupState::RepeatOwnWord(int member) {
  if (PT_WEAKENED(WordsNotRepeated)) return;
  if (own_abort_.has_value()) {
    Tell(member, *own_abort_);
  } else if (own_vote_.has_value()) {
    Tell(member, *own_vote_);
  } else if (!local_.complete() && !detached_) {
    Tell(member, Late{digest_, generation_.group.model, step_, attempt_,
                      local_.MissingText()});
  }
}

bool GroupState::Receives() const {
  return open_since_ && local_.complete() && !detached_ && !own_abort_ &&
         !own_vote_ && received_at_ >= last_repeat_;
}

bool GroupState::AllReady() const {
  for (size_t m = 0; m < peers_.size(); ++m) {
    if (static_cast<int>(m) != me() && !peers_[m].ready) return false;
  }
  return true;
}

void GroupState::OnPeerConnected(int member) {
  peers_[member].connected = true;
  peers_[member].ready = false;
  peers_[member].lost.clear();
  Tell(member, Ready{digest_, generation_.group.model, false});
}

void GroupState::OnPeerDisconnected(int member, bool damaged,
                                    const std::string& reason,
                                    absl::Duration now) {
  Peer& peer = peers_[member];
  if (!peer.connected) return;
  peer.connected = false;
  peer.ready = false;
  peer.down_since = now;
  peer.lost = reason;
  // Frames of this attempt may be lost, in both directions. A vote is not: it
  // is said again, and all that it needed is here.
  if (exchange_.any_opened() && !own_vote_.has_value() &&
      !PT_WEAKENED(LostFramesIgnored)) {
    AbortAttempt(
        damaged ? Cause::kChecksum : Cause::kConnection,
        absl::StrCat("lost the connection to ", names_[member], ": ", reason),
        now);
  }
}

void GroupState::OnReady(int member, const Ready& ready, absl::Duration now) {
  Peer& peer = peers_[member];
  peer.connected = true;
  if (!ready.answer) {
    Tell(member, Ready{digest_, generation_.group.model, true});
  }
  if (std::exchange(peer.ready, true)) return;
  peer.ever_ready = true;
  RepeatOwnWord(member);
  OpenBuckets(now);
}

void GroupState::OnControl(int member, const GroupControl& control,
                           absl::Duration now) {
  if (ended_) return AnswerEnded(member, control);
  if (const auto* ready = std::get_if<Ready>(&control.body)) {
    if (ready->generation == digest_) OnReady(member, *ready, now);
  } else if (const auto* vote = std::get_if<CommitVote>(&control.body)) {
    if (vote->generation == digest_) OnVote(member, control, now);
  } else if (const auto* abort = std::get_if<Abort>(&control.body)) {
    if (abort->generation == digest_) OnAbort(member, control, now);
  } else if (const auto* c = std::get_if<Certificate>(&control.body)) {
    if (c->generation == digest_) OnCertificate(*c, now);
  } else if (const auto* late = std::get_if<Late>(&control.body)) {
    if (late->generation == digest_) OnLate(member, *late, now);
  }
}

// A member that is still at it must learn how it ended here.
void GroupState::AnswerEnded(int member, const GroupControl& control) {
  uint64_t step = 0;
  uint16_t attempt = 0;
  if (const auto* vote = std::get_if<CommitVote>(&control.body)) {
    if (vote->generation != digest_) return;
    step = vote->step;
    attempt = vote->attempt;
  } else if (const auto* abort = std::get_if<Abort>(&control.body)) {
    if (abort->generation != digest_ || abort->answer) return;
    step = abort->step;
    attempt = abort->attempt;
  }
  if (own_abort_ && own_abort_->step == step &&
      own_abort_->attempt == attempt) {
    Abort answer = *own_abort_;
    answer.answer = true;
    Tell(member, std::move(answer));
  } else {
    AnswerPast(member, step, attempt);
  }
}

// The sender has opened a step that this member will never take part in.
void GroupState::AnswerFrame(const IncomingFrame& frame) {
  Peer& peer = peers_[frame.member];
  if (!own_abort_ || own_abort_->step != frame.header.step ||
      own_abort_->attempt != frame.header.attempt || peer.answered_frame) {
    return;
  }
  peer.answered_frame = true;  // Later ones come from the same attempt.
  Abort answer = *own_abort_;
  answer.answer = true;
  Tell(frame.member, std::move(answer));
}

// Members are at most one attempt or one step apart: whoever goes further needs
// this one's word.
GroupState::When GroupState::Classify(uint64_t step, uint16_t attempt) const {
  if (step == step_ && attempt == attempt_) return When::kNow;
  if (PT_WEAKENED(OldWordsCount) && step == step_ && attempt < attempt_) {
    return When::kNow;
  }
  if ((step == step_ && attempt == attempt_ + 1) ||
      (step == step_ + 1 && attempt == 1)) {
    return When::kNext;
  }
  if (past_ && step == past_->step && attempt == past_->attempt) {
    return When::kPast;
  }
  return When::kOther;
}

void GroupState::AnswerPast(int member, uint64_t step, uint16_t attempt) {
  if (!past_ || past_->step != step || past_->attempt != attempt) return;
  if (past_->certificate.has_value()) {
    if (!PT_WEAKENED(CertificateNotSent)) Tell(member, *past_->certificate);
  } else if (past_->abort.has_value()) {
    Abort abort = *past_->abort;
    abort.answer = true;
    Tell(member, std::move(abort));
  }
}

void GroupState::HoldControl(int member, const GroupControl& control) {
  std::vector<GroupControl>& early = peers_[member].early;
  if (std::find(early.begin(), early.end(), control) != early.end()) return;
  // What is dropped will be said again.
  if (early.size() >= kMaxEarlyControl) return;
  early.push_back(control);
}

void GroupState::OnVote(int member, const GroupControl& control,
                        absl::Duration now) {
  const auto& vote = std::get<CommitVote>(control.body);
  switch (Classify(vote.step, vote.attempt)) {
    case When::kPast:
      AnswerPast(member, vote.step, vote.attempt);
      break;
    case When::kNext:
      HoldControl(member, control);
      break;
    case When::kNow:
      // Said again it is a sign of life, but no progress: else an attempt in
      // which one waits for data that nobody owes it would never end.
      if (!ballot_.HasVoted(member)) last_progress_ = now;
      if (!ballot_.AddVote(member, vote)) {
        outbox_->Warn(
            absl::StrCat(names_[member], " contradicts its own vote"));
        break;
      }
      Resolve(now);
      break;
    case When::kOther:
      break;
  }
}

void GroupState::OnAbort(int member, const GroupControl& control,
                         absl::Duration now) {
  const auto& abort = std::get<Abort>(control.body);
  switch (Classify(abort.step, abort.attempt)) {
    case When::kPast:
      if (!abort.answer) AnswerPast(member, abort.step, abort.attempt);
      break;
    case When::kNext:
      HoldControl(member, control);
      break;
    case When::kNow:
      if (!ballot_.AddAbort(member, abort)) {
        outbox_->Warn(
            absl::StrCat(names_[member], " contradicts its own vote"));
        break;
      }
      if (EndForDetached(now)) break;
      Touch(now);
      if (abort.cause >= Cause::kParameters) {
        BeginEnd(abort.cause, abort.detail, now);
      } else {
        // A stall is explained by the one that keeps the others waiting.
        AbortAttempt(abort.cause,
                     abort.cause == Cause::kStall ? local_.MissingText() : "",
                     now);
      }
      Resolve(now);
      break;
    case When::kOther:
      break;
  }
}

void GroupState::OnCertificate(const Certificate& certificate,
                               absl::Duration now) {
  if (Classify(certificate.step, certificate.attempt) != When::kNow) return;
  const uint64_t next = certificate.next_decision;
  const bool switches = own_vote_ && next == own_vote_->candidate;
  if (PT_WEAKENED(CertificateUnchecked) && own_vote_) {
    return Commit(switches ? next : 0, now);
  }
  if (!own_vote_ || own_vote_->result != certificate.result ||
      (!switches && next != switch_.in_force().version)) {
    outbox_->Warn(absl::StrCat(generation_.group.ToString(),
                               ": a certificate for step ", step_,
                               " does not fit the own vote; it is ignored"));
    return;
  }
  Commit(switches ? next : 0, now);
}

void GroupState::OnLate(int member, const Late& late, absl::Duration now) {
  if (Classify(late.step, late.attempt) != When::kNow) return;
  peers_[member].late = late.missing;
  peers_[member].late_at = now;
  // Nobody here sees whether its word is true.
  if (open_since_ && now - *open_since_ < options_->straggler_timeout) {
    last_progress_ = now;
  }
}

size_t GroupState::HoldLimit() const {
  // Per attempt each member of the site and each site sends its share at most
  // once; two attempts can be under way.
  const size_t senders =
      schedule_.site_members().size() + generation_.sites.size();
  return 2 * senders * trainers_[0].memory.slot.size() + (1 << 20);
}

absl::Duration GroupState::LastHeard() const {
  absl::Duration last = -absl::InfiniteDuration();
  for (const Peer& peer : peers_) {
    if (peer.heard_step == step_) last = std::max(last, peer.heard_at);
  }
  return last;
}

void GroupState::OnFrame(IncomingFrame frame, absl::Duration now) {
  if (ended_) return AnswerFrame(frame);
  When when = Classify(frame.header.step, frame.header.attempt);
  if (PT_WEAKENED(FramesOfOldAttempts) && frame.header.step == step_ &&
      frame.header.attempt < attempt_) {
    when = When::kNow;
  }
  if (PT_WEAKENED(FramesOfOldSteps) && frame.header.step + 1 == step_) {
    when = When::kNow;
  }
  if (when != When::kNow && when != When::kNext) return;
  if (when == When::kNow && EndForDetached(now)) return;
  const int member = frame.member;
  if (frame.header.step > peers_[member].heard_step) {
    peers_[member].heard_step = frame.header.step;
    peers_[member].heard_at = now;
  }
  const size_t bytes = frame.payload.bytes.size();
  if (early_bytes_ + exchange_.held_bytes() + bytes > HoldLimit()) {
    outbox_->BreakPeer(
        generation_.members[member].agent,
        absl::StrCat("it sent more than ", HoldLimit(),
                     " bytes ahead of what this agent can take"));
    return;
  }
  if (schedule_.SiteOf(member) != schedule_.site()) {
    counters_.received_bytes += bytes + protocol::kHeaderBytes;
    step_received_bytes_ += bytes + protocol::kHeaderBytes;
  }
  if (when == When::kNext) {
    early_bytes_ += bytes;
    early_frames_.push_back(std::move(frame));
    return;
  }
  if (own_abort_.has_value() && !PT_WEAKENED(VoteAfterAbort)) return;
  last_progress_ = received_at_ = now;
  std::optional<Problem> problem;
  const uint32_t bucket = frame.header.bucket;
  if (!local_.Expects(bucket)) {
    problem = Problem{
        Cause::kLayout,
        absl::StrCat(names_[member], " has bucket ", bucket, ", ", names_[me()],
                     " has only ", local_.buckets().size(), " buckets")};
  } else {
    std::vector<OutgoingFrame> out;
    const absl::Duration begin = options_->stopwatch();
    problem = exchange_.Receive(std::move(frame), out);
    telemetry_.Summed(options_->stopwatch() - begin);
    SendFrames(std::move(out));
  }
  if (problem) {
    AbortAttempt(problem->cause, problem->detail, now);
  } else {
    TellWritten();
  }
  MaybeVote(now);
}

}  // namespace pactrain::agent
