// What time brings: repeats, stalls, deadlines, reports.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/core/group_state.h"
#include "agent/core/wire_convert.h"
#include "base/weakened.h"
#include "protocol/limits.h"

namespace pactrain::agent {

using protocol::Cause;

namespace {

constexpr absl::Duration kReportInterval = absl::Milliseconds(500);

// "416ms", not "416.6666665ms".
std::string DurationText(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1)));
}

}  // namespace

void GroupState::Tick(double slowest_link, absl::Duration now) {
  if (ended_) return;
  slowest_link_ = slowest_link;
  if (now - last_repeat_ >= options_->resolution_timeout() / 5) {
    const bool receives = Receives();
    last_repeat_ = now;
    for (size_t m = 0; m < peers_.size(); ++m) {
      if (static_cast<int>(m) == me()) continue;
      if (!peers_[m].ready) {
        Tell(static_cast<int>(m),
             protocol::Ready{digest_, generation_.group.model, false});
      }
      RepeatOwnWord(static_cast<int>(m));
      // Who has all it needs hears nothing else of one behind a slow link.
      if (receives) {
        Tell(static_cast<int>(m),
             protocol::Late{digest_, generation_.group.model, step_, attempt_,
                            ""});
      }
    }
  }
  Tell(collective_.Tick(now));
  CheckPeers(now);
  if (awaits_since_) MaybeVote(now);
  CheckProgress(now);
  EndIfResolved(now);
  ReportIfDue(now);
}

// Only while a step is open: between steps a broken network harms nobody.
void GroupState::CheckPeers(absl::Duration now) {
  if (!open_since_ || ended_ || ending_) return;
  std::string lost;  // The first one.
  for (size_t m = 0; m < peers_.size(); ++m) {
    const Peer& peer = peers_[m];
    if (static_cast<int>(m) == me() || peer.ready) continue;
    const absl::Duration since = std::max(*open_since_, peer.down_since);
    const absl::Duration limit = peer.ever_ready
                                     ? options_->resolution_timeout()
                                     : options_->stall_timeout();
    if (now - since < limit) continue;
    if (!peer.ever_ready) unreached_.push_back(generation_.members[m].agent);
    if (!lost.empty()) continue;
    lost = absl::StrFormat("%s could not be reached from %s for %s", names_[m],
                           names_[me()], DurationText(limit));
    if (!peer.lost.empty()) absl::StrAppend(&lost, " (", peer.lost, ")");
  }
  if (!lost.empty()) BeginEnd(Cause::kMemberLost, lost, now);
}

// All attempts together, with the time to resolve the last one, last one step
// deadline.
absl::Duration GroupState::StallTimeout() const {
  const absl::Duration stall = options_->stall_timeout();
  if (attempt_ < protocol::kMaxAttempts) return stall;
  return options_->step_deadline - (protocol::kMaxAttempts - 1) * stall -
         options_->resolution_timeout();
}

void GroupState::CheckProgress(absl::Duration now) {
  if (!open_since_ || ended_) return;
  const absl::Duration idle = now - last_progress_;
  const std::string late = LateText(now);
  if (late.empty()) late_.clear();
  if (own_abort_) {
    if (now - aborted_at_ < options_->resolution_timeout()) return;
    BeginEnd(Cause::kMemberLost,
             absl::StrCat("no answer to an abort (",
                          protocol::CauseName(own_abort_->cause), ") from ",
                          ballot_.MissingAborts()),
             now);
  } else if (!late.empty()) {
    CheckLate(late, now);
  } else if (idle >= StallTimeout() && AllReady()) {
    AbortAttempt(
        Cause::kStall,
        own_vote_ ? absl::StrCat("no vote from ", ballot_.MissingVotes()) : "",
        now);
  }
  // The trainers' own watchdog counts from the last word they had.
  if (last_progress_ > last_waiting_ &&
      now - last_waiting_ >= options_->resolution_timeout() && !ended_ &&
      open_since_) {
    last_waiting_ = now;
    TellTrainers(MakeWaiting(absl::StrFormat(
        "step %d attempt %d %s", step_, attempt_,
        late.empty() ? "is under way" : absl::StrCat("waits: ", late))));
  }
}

// Whom the open attempt waits for: trainers that live. Empty: for none.
std::string GroupState::LateText(absl::Duration now) const {
  if (!local_.complete()) {
    return absl::StrCat(names_[me()], ": ", local_.MissingText());
  }
  // As long as one is not reached it is that one; what others said before they
  // could vote may be long past.
  if (!AllReady()) return "";
  for (size_t m = 0; m < peers_.size(); ++m) {
    const Peer& peer = peers_[m];
    if (peer.late.empty() || ballot_.HasVoted(static_cast<int>(m)) ||
        now - peer.late_at >= options_->stall_timeout()) {
      continue;
    }
    return absl::StrCat(names_[m], ": ", peer.late);
  }
  return "";
}

// The wait is as good as progress, up to a bound of its own.
void GroupState::CheckLate(const std::string& late, absl::Duration now) {
  if (!local_.complete()) last_progress_ = now;
  const absl::Duration waited = now - *open_since_;
  const std::string text =
      absl::StrFormat("%s for %s", late, DurationText(waited));
  if (waited >= options_->stall_timeout()) {
    // Another agent's words: the coordinator takes none that are not printable.
    late_ = protocol::CheckMoved("", late).ok() ? late : "another agent";
  }
  if (waited >= options_->straggler_timeout) {
    if (generation_.on_shrink == protocol::OnShrink::kAbort) {
      AbortAttempt(Cause::kDeadline, text, now);
    } else {
      BeginEnd(Cause::kStraggler, text, now);
    }
  } else if (waited >= options_->stall_timeout() && !late_logged_) {
    late_logged_ = true;
    outbox_->Warn(
        absl::StrFormat("%s: step %d waits: %s (--straggler-timeout "
                        "%s)",
                        generation_.group.ToString(), step_, text,
                        DurationText(options_->straggler_timeout)));
  }
}

void GroupState::ReportIfDue(absl::Duration now) {
  if (ended_ || now - last_report_ < kReportInterval) return;
  last_report_ = now;
  Report();
}

void GroupState::Report() {
  if (ended_) return;
  protocol::StepReport report = MakeReport();
  telemetry_.Fill(report);
  if (!std::exchange(keep_told_, true)) report.keep_by_parameter = keep_;
  outbox_->ToCoordinator(std::move(report));
}

void GroupState::ReportAll() {
  keep_told_ = false;
  Report();
}

protocol::StepReport GroupState::MakeReport() const {
  protocol::StepReport report;
  report.group = generation_.group;
  report.generation = generation_.number;
  const bool open_vote =
      own_vote_.has_value() && !PT_WEAKENED(OpenVoteNotReported);
  report.committed_step = open_vote ? step_ : committed_step_;
  report.committed_count = counters_.committed_count + (open_vote ? 1 : 0);
  report.decision_version = switch_.in_force().version;
  report.failed_attempts = failed_attempts_;
  report.failed_by_cause = counters_.failed_attempts;
  report.first_compacted_step = first_compacted_step_;
  report.waits_for = late_;
  report.sent_bytes = counters_.sent_bytes;
  report.sent_kept_bytes = counters_.sent_kept_bytes;
  report.sent_dense_bytes = counters_.sent_dense_bytes;
  report.device_path = PathOfNode(Paths(), collective_);
  return report;
}

}  // namespace pactrain::agent
