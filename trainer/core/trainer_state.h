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

#include <array>
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
#include "trainer/wire.h"

namespace pactrain::trainer {

using Time = std::chrono::nanoseconds;

struct TrainerOptions {
  std::string agent;  // Address, for error texts.
  std::string job;
  std::string site;  // Empty: the agent's.
  std::string launch;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t model = 0;
  wire::Digest128 attach_id = {};  // Random.
  wire::Digest128 model_digest = {};
  std::string model_summary;
  uint64_t elements = 0;    // Of all parameters that need a gradient, >= 1.
  uint64_t slot_bytes = 0;  // 0: enough for all elements in any bucket layout.
  // After the last committed step, or of a saved session; 0: none.
  uint64_t resume_step = 0;
  // Of the state that it holds; zero: none of this job.
  wire::Digest128 lineage = {};
  uint64_t committed = 0;  // Gradient steps of that state, or of a checkpoint.
  wire::Digest128 parameters = {};  // Over the values in that state.
  bool replace = false;             // protocol::Trainer::replace
  // Of the session that this one takes the place of; zero: of none.
  wire::Digest128 last_attach_id = {};
  uint64_t last_generation = 0;
  std::array<uint8_t, wire::kSeatBytes> seat = {};  // wire::Hello::seat
  uint8_t on_shrink = 0;                            // protocol::OnShrink
  // What it would vote before its first step; declared_elements 0: later.
  wire::Digest128 mask_digest = {};
  wire::Digest128 layout_digest = {};
  uint64_t kept_elements = 0;
  uint64_t declared_elements = 0;
  // protocol::Onset
  uint32_t activate_every = 0;
  uint64_t pin_from = 0;
  uint8_t pin_mode = 0;
  uint8_t pin_codec = 0;
  // As wire::Hello has them; 0: takes part in no node reduce.
  uint32_t nccl_version = 0;
  std::string device;
  std::string gpu;
  Time attach_timeout = std::chrono::seconds(300);
  bool gse = true;  // False: an element outside the mask makes a step dense.
};

// kInvalidArgument, naming the field, what came and what is allowed.
Error CheckOptions(const TrainerOptions& options);

// How a committed step went.
struct StepReport {
  uint64_t step = 0;
  uint32_t attempts = 0;  // 1: went through at once.
  uint32_t world_size = 0;
  bool dense = false;       // Resubmitted: all elements in fp32.
  Mode mode = Mode::kFull;  // kFull if any bucket was.
  Codec codec = Codec::kFp32;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t dense_bytes = 0;  // What FULL had sent, in fp32.
  double link_rate = 0;      // As wire::Committed has it.
  uint64_t elements = 0;
  uint64_t submitted_elements = 0;  // Of the attempt that was committed.
  Time wait = {};                   // From the last submit to the commit.
  wire::Decision next = {};
};

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
  Error TakeStep(StepReport* report);

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
  // What this rank's mask set is. `inside_decision` false makes every step
  // dense while another mask set is in force.
  struct VoteOptions {
    wire::Digest128 layout_digest = {};
    wire::Digest128 mask_digest = {};
    uint32_t steps_unchanged = 0;
    uint32_t settle_steps = 1;
    bool inside_decision = true;
    uint64_t kept_elements = 0;
    uint64_t elements = 0;
    std::string moved = {};  // What moved most in its last change.
  };
  Error Vote(const VoteOptions& options, wire::Vote* message);
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
  // How the open step ended.
  struct Outcome {
    Error error;
    StepReport report;
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
                  StepReport* report) const;
  Codec CodecOf(const Placement& placement) const;
  uint32_t rank() const {
    return attached_.has_value() ? attached_->rank : options_.rank;
  }
  std::string Violation(const Placement& placement, uint64_t outside) const;
  Time StepBound() const;

  const TrainerOptions options_;
  const Time started_;
  MaskSets masks_;
  std::string require_dense_;
  std::optional<VoteOptions> vote_;

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
