// What a trainer does in its session with the agent: attach, then step after
// step submit, resubmit, commit or fail.
//
// Invariants: messages are sent for one open step at a time; a step ends
// exactly once, committed or failed; an offset is never given to two buckets of
// an attempt; after a final error nothing is sent.
//
// The caller carries messages and memory. For a packet to send it gets a wire
// struct; for elements to copy a Placement (see WriteTiles, ReadTiles):
//
//   state.MakeHello() -> send; OnMessage() ... -> Event::kAttached
//   state.Place(now, bucket, &placement); outside = WriteTiles(placement,
//   ...); state.Submit(now, placement, placement.elements, outside) -> send
//   OnMessage() -> kResubmit: for (p : state.TakeResubmits()) WriteTiles,
//   Submit, send
//   OnMessage() -> kWritten, kStepDone: ReadTiles of what results() says;
//   after kStepDone state.TakeStep(&step)
//
// Pure: no I/O, clock, threads or logging; `now` is monotonic time since any
// fixed start. Thread-compatible. Owns mask sets, borrows nothing.
#ifndef PACTRAIN_TRAINER_CORE_TRAINER_STATE_H_
#define PACTRAIN_TRAINER_CORE_TRAINER_STATE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/bucket.h"
#include "trainer/core/error.h"
#include "trainer/core/mask_sets.h"
#include "trainer/core/packet.h"
#include "trainer/membership_abi.h"
#include "trainer/wire.h"

namespace pactrain::trainer {

using Time = std::chrono::nanoseconds;

struct TrainerOptions {
  std::string agent;  // Address, for error texts.
  // Whom it attaches as, but for what MakeHello() sets: header, version, and
  // slot_bytes if that is 0: enough for all elements in any bucket layout.
  wire::Hello hello = {};
  Time attach_timeout = std::chrono::seconds(300);
  bool gse = true;  // False: an element outside the mask makes a step dense.
};

// Sets a name in Hello. kInvalidArgument, naming the field: it is too long.
Error SetName(const std::string& field, const std::string& value,
              char (&name)[wire::kNameBytes]);

// As the C ABI has it.
pt_decision ToC(const wire::Decision& decision);

// kInvalidArgument, naming the field, what came and what is allowed.
Error CheckOptions(const TrainerOptions& options);

enum class Event {
  kNone,
  kWaiting,     // waiting_text() is new.
  kAttached,    // attached() is set; its two file descriptors came along.
  kResubmit,    // TakeResubmits() now.
  kWritten,     // results() is more.
  kCollective,  // TakeCollective() now.
  kStepDone,    // TakeStep() now (committed, or failed and the session lives).
  kOver,        // error() is final; the open step, if any, ended with it.
};

class TrainerState {
 public:
  // REQUIRES: CheckOptions(options).ok().
  TrainerState(TrainerOptions options, Time now);

  wire::Hello MakeHello() const;

  // A packet from the agent. Anything that breaks the protocol is final
  // kInternal.
  Event OnMessage(Time now, const void* packet, size_t bytes);
  // The socket is closed or broken: final kAgentUnresponsive.
  Event OnClosed(Time now);
  // Something only the caller can see is wrong with the agent (its memory,
  // ...).
  Event OnError(wire::Code code, const std::string& text);
  // Ends an attach or a step that got no message in time.
  Event OnTick(Time now);
  // When OnTick() will have something to do; none while nothing is waited for,
  // or while the trainer itself has not submitted the last bucket.
  std::optional<Time> deadline() const;

  // Gives the next bucket of the open step its place; bucket 0 opens the step.
  //   kInvalidArgument: not attached, index out of order, a step is already
  //     complete, elements or dtype out of range, the slot is too small.
  //   Any other: the open step (or the session) has failed with it.
  // After an error nothing has been placed; kInvalidArgument while buckets of
  // the open step are still to come is final, because that step can never be
  // complete.
  Error Place(Time now, const Bucket& bucket, Placement* placement);
  // What Place() would find if it was called now, but for the offset; of a
  // bucket that it would refuse anything.
  Placement Plan(const Bucket& bucket) const;
  // The message for a bucket of which the first `filled` elements lie in the
  // slot; `outside` is what was returned when they were written. To be called
  // in order, for each Placement once with all its elements and before that,
  // as long as no message is handled, with fewer.
  wire::Submit Submit(Time now, const Placement& placement, uint64_t filled,
                      uint64_t outside);
  // What came with kCollective.
  AgentPacket TakeCollective() { return std::move(collective_); }
  // A bucket is staged: the agent owes an answer, as after the last submit.
  void SetStaged(Time now, bool staged) {
    staged_ = staged;
    last_progress_ = now;
  }
  uint32_t attempt() const { return open_ ? attempt_ : 1; }
  // All buckets submitted so far at their new places, for the next attempt.
  std::vector<Placement> TakeResubmits();

  bool step_open() const { return open_; }
  bool step_done() const { return open_ && outcome_.has_value(); }
  // Ends the open step: its report, or the error it failed with.
  // REQUIRES: step_done().
  Error TakeStep(pt_step* report);

  // What lies in the result region, of the step that is open: all of the first
  // `buckets` and the first `elements` of the next one. It is what the step
  // will give if this attempt is committed, so the results of another attempt
  // are to be read from the start.
  struct Results {
    uint32_t attempt = 0;
    uint32_t buckets = 0;
    uint64_t elements = 0;
    bool committed = false;  // They are all there.
  };
  const Results& results() const { return results_; }
  const std::vector<Placement>& placements() const { return placements_; }

  // They hold for buckets that are placed from now on.
  Error SetMasks(MaskSet masks);
  // What this rank's mask set is: completes `message`, of which the caller has
  // set the numbers. `inside_decision` 0 makes every step dense while another
  // mask set is in force. `moved`: what moved most in its last change.
  Error Vote(const std::string& moved, wire::Vote* message);
  // Non-empty: every step is made dense, with this reason.
  void RequireDense(const std::string& reason) { require_dense_ = reason; }
  wire::Detach MakeDetach() const;

  const std::optional<wire::Attached>& attached() const { return attached_; }
  const wire::Decision& decision() const { return decision_; }
  // The step that is open, or the one that bucket 0 will open.
  uint64_t next_step() const { return next_step_; }
  uint64_t wanted_slot_bytes() const;
  bool over() const { return !error_.ok(); }
  const Error& error() const { return error_; }  // The final one.
  const std::string& waiting_text() const { return waiting_text_; }

 private:
  // How the open step ended; emplace() zeroes the report.
  struct Outcome {
    Error error;
    pt_step report;
  };

  Event OnAttached(Time now, const wire::Attached& message);
  Event OnWaiting(Time now, const wire::Waiting& message);
  Event OnResubmit(Time now, const wire::Resubmit& message);
  Event OnWritten(Time now, const wire::Written& message);
  Event OnCommitted(Time now, const wire::Committed& message);
  Event OnFailed(const wire::Failed& message);
  Event BadMessage(const std::string& what);
  Event End(Error error);
  // The job by the name that this rank gave it, for ends of an attach.
  std::string JobText() const;
  // What to do when an attach took too long: the last line of its error.
  std::string AfterWaiting() const;
  // What to do when the agent is gone: as above.
  std::string AfterAgentLoss() const;

  Error CheckOrder(const Bucket& bucket) const;
  Error CheckBucket(const Bucket& bucket) const;
  void OpenStep(Time now);
  void FailStep(Error error);
  Placement PlaceAt(const Bucket& bucket, uint64_t offset, bool dense) const;
  void FillReport(Time now, const wire::Committed& message,
                  pt_step* report) const;
  Codec CodecOf(const Placement& placement) const;
  uint32_t rank() const {
    return attached_.has_value() ? attached_->rank : options_.hello.rank;
  }
  std::string Violation(const Placement& placement, uint64_t outside) const;
  Time StepBound() const;

  const TrainerOptions options_;
  const Time started_;
  MaskSets masks_;
  std::string require_dense_;
  std::optional<wire::Vote> vote_;

  std::optional<wire::Attached> attached_;
  wire::Decision decision_ = {};
  uint64_t next_step_ = 0;  // The open step, or the one to open next.
  Error error_;             // Final.
  std::string waiting_text_;
  AgentPacket collective_;
  bool staged_ = false;

  // The open step.
  bool open_ = false;
  uint64_t step_ = 0;
  bool complete_ = false;  // The last bucket is submitted.
  uint32_t attempt_ = 1;
  bool dense_ = false;
  uint64_t end_ = 0;                   // Bytes of the slot in use.
  uint64_t dense_end_ = 0;             // The same if all were dense.
  std::vector<Placement> placements_;  // By bucket.
  Results results_;
  Time last_progress_ = {};
  Time last_submit_ = {};
  std::optional<Outcome> outcome_;

  // Said about the next step before it is opened.
  uint32_t early_resubmit_attempt_ = 0;  // 0: none.
  std::optional<Error> early_failure_;
  Error last_failure_;  // Of the step before, until the next is opened.
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_TRAINER_STATE_H_
