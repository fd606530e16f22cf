// Messages, ends and deadlines; the buckets of a step are in trainer_step.cc.
#include "trainer/core/trainer_state.h"

#include <utility>

#include "base/weakened.h"
#include "trainer/core/packet.h"
#include "trainer/core/text.h"

namespace pactrain::trainer {
namespace {

constexpr uint64_t kNoStep = ~uint64_t{0};
constexpr Time kWatchdogMargin = std::chrono::seconds(2);

std::string Seconds(Time time) {
  const auto tenths =
      std::chrono::duration_cast<std::chrono::milliseconds>(time).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace

TrainerState::TrainerState(TrainerOptions options, Time now)
    : options_(std::move(options)), started_(now) {}

Event TrainerState::OnMessage(Time now, const void* packet, size_t bytes) {
  if (over()) return Event::kNone;
  AgentPacket parsed;
  const std::string wrong = ParsePacket(packet, bytes, &parsed);
  if (!wrong.empty()) return BadMessage(wrong);
  if (const auto* m = std::get_if<wire::Waiting>(&parsed)) {
    return OnWaiting(now, *m);
  }
  if (const auto* m = std::get_if<wire::Attached>(&parsed)) {
    return OnAttached(now, *m);
  }
  if (const auto* m = std::get_if<wire::Failed>(&parsed)) return OnFailed(*m);
  if (!attached_.has_value()) {
    return BadMessage("a message about a step came before Attached");
  }
  if (const auto* m = std::get_if<wire::Resubmit>(&parsed)) {
    return OnResubmit(now, *m);
  }
  if (const auto* m = std::get_if<wire::Written>(&parsed)) {
    return OnWritten(now, *m);
  }
  if (!std::holds_alternative<wire::Committed>(parsed)) {
    last_progress_ = now;
    collective_ = std::move(parsed);
    return Event::kCollective;
  }
  return OnCommitted(now, std::get<wire::Committed>(parsed));
}

Event TrainerState::OnWaiting(Time now, const wire::Waiting& message) {
  last_progress_ = now;
  if (attached_.has_value() || waiting_text_ == message.text) {
    return Event::kNone;
  }
  waiting_text_ = message.text;
  return Event::kWaiting;
}

Event TrainerState::OnAttached(Time now, const wire::Attached& message) {
  if (attached_.has_value()) return BadMessage("Attached came twice");
  if (options_.hello.on_shrink == 0 &&
      (message.world_size != options_.hello.world_size ||
       message.rank != options_.hello.rank)) {
    return BadMessage("Attached names rank " + std::to_string(message.rank) +
                      " of " + std::to_string(message.world_size) +
                      ", asked for was " + std::to_string(options_.hello.rank) +
                      " of " + std::to_string(options_.hello.world_size));
  }
  if (message.slot_bytes < wanted_slot_bytes() ||
      message.result_bytes < message.slot_bytes) {
    return BadMessage("the slot has " + std::to_string(message.slot_bytes) +
                      " bytes and the result " +
                      std::to_string(message.result_bytes) + ", wanted were " +
                      std::to_string(wanted_slot_bytes()) + " each");
  }
  attached_ = message;
  decision_ = message.decision;
  next_step_ = message.base_step;
  last_progress_ = now;
  return Event::kAttached;
}

Event TrainerState::OnResubmit(Time now, const wire::Resubmit& message) {
  if (message.step < next_step_) return Event::kNone;
  if (message.step > next_step_) {
    return BadMessage("Resubmit names step " + std::to_string(message.step) +
                      ", the next one is " + std::to_string(next_step_));
  }
  if (!open_ || outcome_.has_value()) {
    early_resubmit_attempt_ = message.attempt;
    return Event::kNone;
  }
  if (message.attempt <= attempt_) return Event::kNone;
  attempt_ = message.attempt;
  dense_ = true;
  last_progress_ = now;
  return Event::kResubmit;
}

Event TrainerState::OnWritten(Time now, const wire::Written& message) {
  // Of an attempt that has failed since.
  if (message.step < next_step_ || message.attempt < attempt_) {
    return Event::kNone;
  }
  const bool is_there = message.bucket < placements_.size();
  // Of a bucket whose last piece is not submitted yet: later.
  const uint64_t elements = is_there || complete_ ? message.elements : 0;
  const bool submitted =
      message.step == next_step_ && open_ && !outcome_.has_value() &&
      message.bucket <= placements_.size() &&
      elements <= (is_there ? placements_[message.bucket].elements : 0);
  if (!submitted) {
    return BadMessage("Written names step " + std::to_string(message.step) +
                      " bucket " + std::to_string(message.bucket) + " to " +
                      std::to_string(message.elements) +
                      ", which this trainer has not submitted");
  }
  last_progress_ = now;
  results_ = {.attempt = message.attempt,
              .buckets = message.bucket,
              .elements = elements};
  return Event::kWritten;
}

Event TrainerState::OnCommitted(Time now, const wire::Committed& message) {
  if (message.step < next_step_) return Event::kNone;
  if (message.step > next_step_ || !open_ || outcome_.has_value() ||
      (!complete_ && !PT_WEAKENED(CommitBeforeSubmitted)) ||
      message.attempt < attempt_) {
    return BadMessage("Committed names step " + std::to_string(message.step) +
                      " attempt " + std::to_string(message.attempt) +
                      ", which this trainer has not submitted");
  }
  if (message.world_size != attached_->world_size) {
    return BadMessage("Committed.world_size is " +
                      std::to_string(message.world_size) + ", attached with " +
                      std::to_string(attached_->world_size));
  }
  outcome_.emplace();
  FillReport(now, message, &outcome_->report);
  results_ = {.attempt = message.attempt,
              .buckets = static_cast<uint32_t>(placements_.size()),
              .committed = true};
  decision_ = message.next;
  ++next_step_;
  return Event::kStepDone;
}

Event TrainerState::OnFailed(const wire::Failed& message) {
  Error error = {.code = message.code,
                 .text = message.text,
                 .final = message.final != 0 || !attached_.has_value(),
                 .may_rejoin = message.may_rejoin != 0};
  if (!attached_.has_value() && (error.code == wire::Code::kRefused ||
                                 error.code == wire::Code::kReplaced)) {
    error.text = "attach to " + JobText() + " was refused: " + error.text;
  }
  if (error.final) return End(std::move(error));
  if (message.step == kNoStep) {
    if (!open_ || outcome_.has_value()) return Event::kNone;
  } else if (message.step < next_step_) {
    return Event::kNone;
  } else if (message.step > next_step_) {
    return BadMessage("Failed names step " + std::to_string(message.step) +
                      ", the next one is " + std::to_string(next_step_));
  } else if (!open_ || outcome_.has_value()) {
    early_failure_ = std::move(error);
    return Event::kNone;
  }
  FailStep(std::move(error));
  return Event::kStepDone;
}

Event TrainerState::OnClosed(Time now) {
  if (over()) return Event::kNone;
  return End({.code = wire::Code::kAgentUnresponsive,
              .text = "the agent at " + options_.agent +
                      " closed the connection: it was stopped or has died.\n" +
                      AfterAgentLoss(),
              .may_rejoin = options_.hello.on_shrink != 0});
}

Event TrainerState::OnError(wire::Code code, const std::string& text) {
  if (over()) return Event::kNone;
  return End({.code = code, .text = text});
}

Event TrainerState::BadMessage(const std::string& what) {
  return End({.code = wire::Code::kInternal,
              .text = "the agent at " + options_.agent +
                      " broke the protocol: " + what +
                      ".\nCheck that agent and trainer library are of one "
                      "version; report this if they are."});
}

Event TrainerState::End(Error error) {
  error.final = true;
  error_ = error;
  if (open_ && !outcome_.has_value()) FailStep(std::move(error));
  return Event::kOver;
}

void TrainerState::FailStep(Error error) {
  outcome_.emplace();
  outcome_->error = std::move(error);
  ++next_step_;
}

Time TrainerState::StepBound() const {
  return std::chrono::milliseconds(attached_->step_deadline_ms) +
         kWatchdogMargin;
}

std::optional<Time> TrainerState::deadline() const {
  if (over()) return std::nullopt;
  if (!attached_.has_value()) return started_ + options_.attach_timeout;
  const bool waits = open_ && !outcome_.has_value() && complete_;
  if (!waits && !staged_) return std::nullopt;
  return last_progress_ + StepBound();
}

Event TrainerState::OnTick(Time now) {
  const std::optional<Time> end = deadline();
  if (!end.has_value() || now < *end) return Event::kNone;
  if (attached_.has_value()) {
    return End({.code = wire::Code::kAgentUnresponsive,
                .text = "step " + std::to_string(next_step_) +
                        ": no word from the agent at " + options_.agent +
                        " for " + Seconds(StepBound()) +
                        " (the step deadline and 2 s).\n" + AfterAgentLoss(),
                .may_rejoin = options_.hello.on_shrink != 0});
  }
  if (waiting_text_.empty()) {
    return End({.code = wire::Code::kAgentUnresponsive,
                .text = "the agent at " + options_.agent +
                        " took the connection but said nothing for " +
                        Seconds(options_.attach_timeout) +
                        ".\nLook at the agent's log and restart it."});
  }
  return End({.code = wire::Code::kCoordinatorUnavailable,
              .text = "attach to " + JobText() + " ended after " +
                      Seconds(options_.attach_timeout) + ": " + waiting_text_ +
                      ".\n" + AfterWaiting()});
}

std::string TrainerState::JobText() const {
  return std::string("job \"") + options_.hello.job + "\"";
}

std::string TrainerState::AfterAgentLoss() const {
  std::string advice = "Look at the agent's log, start it again";
  if (!attached_.has_value()) return advice + " and then the training.";
  // A rank of an elastic job takes the others' state: no checkpoint is needed.
  return advice + (options_.hello.on_shrink == 0
                       ? " and restart the training from its last checkpoint."
                       : ", and this rank if it has ended.");
}

std::string TrainerState::AfterWaiting() const {
  if (waiting_text_.find("coordinator") != std::string::npos) {
    return "Look at the coordinator's log and at that of the agent at " +
           options_.agent + ", mend the cause and start again.";
  }
  if (waiting_text_.find("PACTRAIN_SITES") != std::string::npos) {
    return "Correct PACTRAIN_SITES and start again.";
  }
  return "Start the ranks that are missing, or wait longer "
         "(PACTRAIN_ATTACH_TIMEOUT). If all run, compare PACTRAIN_JOB_ID: all "
         "ranks of a training have one job name, here \"" +
         std::string(options_.hello.job) + "\", and no other training has it.";
}

Error TrainerState::Vote(const std::string& moved, wire::Vote* message) {
  if (over()) return error_;
  if (!attached_.has_value()) {
    return Invalid(
        "a mask vote before the session is attached.\nAttach first.");
  }
  if (message->kept_elements > message->elements ||
      message->elements > kMaxElements) {
    return Invalid("the vote has " + std::to_string(message->kept_elements) +
                   " kept of " + std::to_string(message->elements) +
                   " elements, allowed kept <= elements <= " +
                   std::to_string(kMaxElements) + ".\nCorrect the counts.");
  }
  if (moved.size() >= wire::kMovedBytes || !IsPrintable(moved)) {
    return Invalid("moved has " + std::to_string(moved.size()) + " bytes" +
                   (IsPrintable(moved) ? "" : ", not all printable") +
                   "; allowed are up to " +
                   std::to_string(wire::kMovedBytes - 1) +
                   " bytes of printable ASCII.\nName fewer parameters.");
  }
  message->header = {wire::Kind::kVote, sizeof(*message)};
  SetText(message->moved, moved);
  vote_ = *message;
  return {};
}

wire::Detach TrainerState::MakeDetach() const {
  return {.header = {wire::Kind::kDetach, sizeof(wire::Detach)}};
}

}  // namespace pactrain::trainer
