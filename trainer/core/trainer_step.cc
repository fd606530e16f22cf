// The buckets of a step: where they lie, what is said about them.
#include <cstring>
#include <utility>

#include "base/weakened.h"
#include "trainer/core/text.h"
#include "trainer/core/trainer_state.h"

namespace pactrain::trainer {
namespace {

uint64_t Align(uint64_t bytes) {
  return (bytes + wire::kSlotAlign - 1) / wire::kSlotAlign * wire::kSlotAlign;
}

std::string Name(const Bucket& bucket) {
  return "bucket " + std::to_string(bucket.index);
}

}  // namespace

Error TrainerState::Place(Time now, const Bucket& bucket,
                          Placement* placement) {
  Error error = CheckOrder(bucket);
  if (error.ok()) error = CheckBucket(bucket);
  if (!error.ok()) {
    // A step that lacks a bucket for good would never end.
    const bool stuck = open_ && !outcome_.has_value() && !complete_;
    if (stuck && !over()) End(error);
    return error;
  }
  if (bucket.index == 0) OpenStep(now);
  if (outcome_.has_value()) return outcome_->error;
  *placement = PlaceAt(bucket, end_, dense_);
  return {};
}

Placement TrainerState::Plan(const Bucket& bucket) const {
  return PlaceAt(bucket, 0, open_ ? dense_ : early_resubmit_attempt_ != 0);
}

Error TrainerState::CheckOrder(const Bucket& bucket) const {
  if (over()) return error_;
  if (!attached_.has_value()) {
    return Invalid("a bucket before the session is attached.\nAttach first.");
  }
  if (open_) {
    if (outcome_.has_value() && !outcome_->error.ok()) return outcome_->error;
    if (outcome_.has_value() || complete_ ||
        bucket.index != placements_.size()) {
      return Invalid(Name(bucket) + " came, step " + std::to_string(step_) +
                     " has " + std::to_string(placements_.size()) +
                     (complete_ ? " and its last one.\nWait for the step first."
                                : " so far.\nSubmit buckets in order."));
    }
    return {};
  }
  if (bucket.index == 0) return {};
  if (!last_failure_.ok()) return last_failure_;
  return Invalid(Name(bucket) +
                 " came, no step is open.\nSubmit buckets in order from 0.");
}

Error TrainerState::CheckBucket(const Bucket& bucket) const {
  if (bucket.index >= kMaxBuckets) {
    return Invalid(Name(bucket) + " came, a step may have " +
                   std::to_string(kMaxBuckets) +
                   " buckets.\nUse larger buckets (bucket_cap_mb).");
  }
  if (bucket.op != Op::kSum && bucket.op != Op::kXor) {
    return Invalid(Name(bucket) + ": op is " +
                   std::to_string(static_cast<int>(bucket.op)) +
                   ", allowed 1 (sum) and 2 (xor).\nCorrect it.");
  }
  if (bucket.dtype != Dtype::kFloat32 &&
      (bucket.dtype != Dtype::kBfloat16 || bucket.op == Op::kXor)) {
    return Invalid(Name(bucket) + ": dtype is " +
                   std::to_string(static_cast<int>(bucket.dtype)) +
                   ", allowed 1 (float32) and for sums 2 (bfloat16).\n"
                   "Convert it first.");
  }
  // Dense, because any step may have to be sent again so.
  const uint64_t used = bucket.index == 0 ? 0 : dense_end_;
  if (bucket.elements > kMaxElements ||
      used + 4 * bucket.elements > attached_->slot_bytes) {
    return Invalid(Name(bucket) + " with " + std::to_string(bucket.elements) +
                   " elements does not fit: " + std::to_string(used) + " of " +
                   std::to_string(attached_->slot_bytes) +
                   " bytes of the slot are taken.\nAttach with larger "
                   "slot_bytes.");
  }
  return {};
}

void TrainerState::OpenStep(Time now) {
  open_ = true;
  step_ = next_step_;
  complete_ = false;
  attempt_ = 1;
  dense_ = false;
  end_ = 0;
  dense_end_ = 0;
  placements_.clear();
  results_ = {};
  last_progress_ = now;
  last_failure_ = {};
  outcome_.reset();
  if (early_resubmit_attempt_ != 0) {
    attempt_ = std::exchange(early_resubmit_attempt_, 0);
    dense_ = true;
  }
  if (early_failure_.has_value()) {
    FailStep(*std::exchange(early_failure_, std::nullopt));
  }
}

Placement TrainerState::PlaceAt(const Bucket& bucket, uint64_t offset,
                                bool dense) const {
  Placement placement;
  placement.bucket = bucket;
  placement.offset = offset;
  placement.elements = bucket.elements;
  placement.dense = dense;
  if (dense || bucket.op != Op::kSum) return placement;
  const auto mode = static_cast<Mode>(decision_.mode);
  if (Same(decision_.mask_digest, {})) {
    placement.mode = mode;
    return placement;
  }
  placement.mask = masks_.Find(decision_.mask_digest, bucket.index,
                               bucket.layout, bucket.elements);
  if (placement.mask != nullptr) {
    placement.mode = mode;
    placement.elements = placement.mask->kept();
    placement.count_outside = !options_.gse;
  }
  return placement;
}

wire::Submit TrainerState::Submit(Time now, const Placement& placement,
                                  uint64_t filled, uint64_t outside) {
  const Bucket& bucket = placement.bucket;
  const bool whole = filled == placement.elements;
  if (whole && bucket.index == placements_.size()) {
    placements_.push_back(placement);
    end_ = placement.offset + Align(placement.bytes());
    dense_end_ += Align(4 * bucket.elements);
    complete_ = bucket.last;
    last_submit_ = now;
  }
  last_progress_ = now;

  wire::Submit message = {};
  message.header = {wire::Kind::kSubmit, sizeof(message)};
  message.step = step_;
  message.attempt = attempt_;
  message.bucket = bucket.index;
  message.elements = placement.elements;
  message.filled = filled;
  message.offset = placement.offset;
  message.bucket_layout = bucket.layout;
  message.decision_version = decision_.version;
  if (placement.mask != nullptr) message.mask_digest = decision_.mask_digest;
  message.mode = static_cast<uint8_t>(placement.mode);
  message.dense = dense_ ? 1 : 0;
  message.op = static_cast<uint8_t>(bucket.op);
  message.dtype = static_cast<uint8_t>(bucket.dtype);
  message.last = bucket.last ? 1 : 0;
  if (bucket.last) message.parameters = bucket.parameters;
  const std::string violation = whole ? Violation(placement, outside) : "";
  message.violation = violation.empty() ? 0 : 1;
  SetText(message.violation_text, violation);
  return message;
}

// As the agent has it: a bucket that TERNARY does not hold for is sent exactly.
Codec TrainerState::CodecOf(const Placement& placement) const {
  const bool outside_ternary =
      placement.mode == Mode::kFull &&
      decision_.mode == static_cast<uint8_t>(Mode::kTernary);
  return dense_ || outside_ternary ? Codec::kFp32
                                   : static_cast<Codec>(decision_.codec);
}

// Why the bucket may not travel as the decision says; empty if it may.
std::string TrainerState::Violation(const Placement& placement,
                                    uint64_t outside) const {
  const Bucket& bucket = placement.bucket;
  if (dense_ || bucket.op != Op::kSum) return "";
  const bool compacted = placement.mask != nullptr;
  const bool exact = CodecOf(placement) == Codec::kFp32;
  if (!require_dense_.empty() && (compacted || !exact)) return require_dense_;
  if (compacted && vote_.has_value() && vote_->inside_decision == 0 &&
      !Same(vote_->mask_digest, decision_.mask_digest)) {
    return "rank " + std::to_string(rank()) +
           " has another mask set, not inside the decision's";
  }
  if (outside == 0) return "";
  return "rank " + std::to_string(rank()) + ": " + std::to_string(outside) +
         " elements of " + Name(bucket) + " outside the mask are not zero";
}

std::vector<Placement> TrainerState::TakeResubmits() {
  end_ = 0;
  for (Placement& placement : placements_) {
    if (!PT_WEAKENED(ResubmitKeepsPlaces)) {
      placement = PlaceAt(placement.bucket, end_, dense_);
    }
    end_ += Align(placement.bytes());
  }
  return placements_;
}

pt_decision ToC(const wire::Decision& decision) {
  pt_decision to = {};
  to.version = decision.version;
  to.mode = decision.mode;
  to.codec = decision.codec;
  to.mask_digest = {decision.mask_digest.hi, decision.mask_digest.lo};
  to.layout_digest = {decision.layout_digest.hi, decision.layout_digest.lo};
  static_assert(sizeof(to.reason) == sizeof(decision.reason));
  std::memcpy(to.reason, decision.reason, sizeof(to.reason));
  return to;
}

void TrainerState::FillReport(Time now, const wire::Committed& message,
                              pt_step* report) const {
  report->step = step_;
  report->attempts = message.attempt;
  report->world_size = message.world_size;
  report->dense = dense_ ? 1 : 0;
  report->mode = decision_.mode;
  report->codec = decision_.codec;
  for (const Placement& placement : placements_) {
    if (placement.mode == Mode::kFull) {
      report->mode = static_cast<int32_t>(Mode::kFull);
      report->codec = static_cast<int32_t>(CodecOf(placement));
    }
    report->elements += placement.bucket.elements;
    report->submitted_elements += placement.elements;
  }
  report->sent_bytes = message.sent_bytes;
  report->received_bytes = message.received_bytes;
  report->dense_bytes = message.dense_bytes;
  report->link_rate = message.link_rate;
  report->wait_seconds =
      std::chrono::duration<double>(now - last_submit_).count();
  report->next = ToC(message.next);
}

Error TrainerState::TakeStep(pt_step* report) {
  open_ = false;
  last_failure_ = outcome_->error;
  *report = outcome_->report;
  outcome_.reset();
  return last_failure_;
}

Error TrainerState::SetMasks(MaskSet masks) {
  uint64_t elements = 0;
  for (const MaskSet::BucketMask& bucket : masks.buckets) {
    elements += bucket.plan->elements();
  }
  const uint64_t buckets = uint64_t{masks.first_bucket} + masks.buckets.size();
  if (buckets > kMaxBuckets || elements > kMaxElements) {
    return Invalid("a mask set of " + std::to_string(buckets) +
                   " buckets and " + std::to_string(elements) +
                   " elements, allowed are " + std::to_string(kMaxBuckets) +
                   " and " + std::to_string(kMaxElements) +
                   ".\nSplit the model.");
  }
  masks_.Add(std::move(masks));
  return {};
}

}  // namespace pactrain::trainer
