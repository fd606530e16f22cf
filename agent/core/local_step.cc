#include "agent/core/local_step.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/core/ballot.h"
#include "agent/core/wire_convert.h"
#include "agent/exchange/combine.h"
#include "agent/exchange/noise.h"
#include "base/status_macros.h"
#include "base/weakened.h"
#include "protocol/limits.h"

namespace pactrain::agent {

using protocol::BucketContext;
using protocol::Cause;
using protocol::Codec;
using protocol::Mode;
using protocol::Op;

Cause Difference(const BucketContext& a, const BucketContext& b) {
  if (a == b) return Cause::kNone;
  if (a.bucket_layout != b.bucket_layout || a.op != b.op ||
      a.dtype != b.dtype || a.bucket != b.bucket ||
      a.decision_version != b.decision_version) {
    return Cause::kLayout;
  }
  // One model, one layout: what differs is what the masks left of it.
  const bool masked = a.mode != Mode::kFull || b.mode != Mode::kFull;
  return masked ? Cause::kMask : Cause::kLayout;
}

std::string Describe(const BucketContext& c) {
  std::string text = absl::StrFormat(
      "%d elements of layout %s (%s, %s %s%s", c.elements,
      c.bucket_layout.Short(), c.dtype, protocol::ModeName(c.mode),
      protocol::CodecName(c.codec), c.op == Op::kXor ? ", broadcast" : "");
  if (!c.mask_digest.empty()) {
    absl::StrAppend(&text, ", mask set ", c.mask_digest.Short());
  }
  return absl::StrCat(text, ", decision ", c.decision_version, ")");
}

LocalStep::LocalStep(std::vector<Member> members,
                     const protocol::Digest& generation, uint16_t model,
                     ShareOut share_out)
    : members_(std::move(members)),
      generation_(generation),
      model_(model),
      share_out_(std::move(share_out)) {}

void LocalStep::Reset(const protocol::Decision& decision, uint16_t attempt,
                      bool dense, bool measure) {
  decision_ = decision;
  measure_ = measure;
  squares_ = 0;
  attempt_ = attempt;
  dense_ = dense;
  buckets_.clear();
  next_bucket_.assign(members_.size(), 0);
  finished_.assign(members_.size(), false);
  parameters_ = {};
  parameters_rank_.reset();
}

bool LocalStep::complete() const {
  return std::find(finished_.begin(), finished_.end(), false) ==
         finished_.end();
}

bool LocalStep::Expects(uint32_t index) const {
  return index < buckets_.size() || buckets_.empty() || !buckets_.back().last;
}

std::string LocalStep::MissingText() const {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!finished_[i]) {
      return absl::StrFormat("rank %d has not submitted bucket %d",
                             members_[i].rank, next_bucket_[i]);
    }
  }
  return "";
}

absl::Status LocalStep::Check(int index, const wire::Submit& s) const {
  const auto refuse = [&](absl::string_view field, uint64_t got,
                          absl::string_view want) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "Submit of rank %d, step %d, bucket %d: %s is %d, want %s",
        members_[index].rank, s.step, s.bucket, field, got, want));
  };
  const uint64_t slot = members_[index].slot.size();
  if (finished_[index] || s.bucket != next_bucket_[index] ||
      s.bucket >= static_cast<uint32_t>(protocol::kMaxBuckets)) {
    return refuse("bucket", s.bucket, absl::StrCat(next_bucket_[index]));
  }
  if (s.offset % wire::kSlotAlign != 0 || s.offset > slot) {
    return refuse("offset", s.offset, "a multiple of 64 in the slot");
  }
  if (s.elements > (slot - s.offset) / 4) {
    return refuse("elements", s.elements,
                  absl::StrCat("at most ", (slot - s.offset) / 4));
  }
  const uint64_t before = s.bucket < buckets_.size()
                              ? buckets_[s.bucket].filled[index].value_or(0)
                              : 0;
  if (s.filled < before || s.filled > s.elements) {
    return refuse("filled", s.filled,
                  absl::StrCat("from ", before, " to ", s.elements));
  }
  if (s.op < 1 || s.op > 2) return refuse("op", s.op, "1 or 2");
  if (s.dtype < 1 || s.dtype > 2) return refuse("dtype", s.dtype, "1 or 2");
  if (s.decision_version != decision_.version) {
    return refuse("decision_version", s.decision_version,
                  absl::StrCat(decision_.version));
  }
  if ((s.dense != 0) != dense_) {
    return refuse("dense", s.dense, dense_ ? "1" : "0");
  }
  const bool full = s.mode == static_cast<uint8_t>(Mode::kFull);
  if (!full && (dense_ || s.mode != static_cast<uint8_t>(decision_.mode) ||
                FromWire(s.mask_digest) != decision_.mask_digest)) {
    return refuse("mode", s.mode,
                  "1, or mode and mask set of the decision in force");
  }
  return absl::OkStatus();
}

BucketContext LocalStep::ContextOf(const wire::Submit& s) const {
  BucketContext c;
  c.generation = generation_;
  c.model = model_;
  c.bucket = s.bucket;
  c.elements = s.elements;
  c.bucket_layout = FromWire(s.bucket_layout);
  c.decision_version = s.decision_version;
  c.mode = static_cast<Mode>(s.mode);
  c.dense = dense_;
  c.op = static_cast<Op>(s.op);
  // A bucket that TERNARY does not hold for is sent exactly.
  const bool exact =
      dense_ || c.op == Op::kXor ||
      (c.mode == Mode::kFull && decision_.mode == Mode::kTernary);
  c.codec = exact ? Codec::kFp32 : decision_.codec;
  if (c.mode != Mode::kFull) c.mask_digest = FromWire(s.mask_digest);
  c.dtype = s.dtype == 1 ? "float32" : "bfloat16";
  return c;
}

std::optional<Problem> LocalStep::Compare(const Bucket& bucket, uint32_t rank,
                                          const wire::Submit& submit) const {
  const BucketContext context = ContextOf(submit);
  Cause cause = Difference(bucket.context, context);
  if (cause == Cause::kNone &&
      (bucket.last != (submit.last != 0) || bucket.offset != submit.offset)) {
    cause = Cause::kLayout;
  }
  if (cause == Cause::kNone) return std::nullopt;
  const auto end = [](bool last) { return last ? " and no more buckets" : ""; };
  return Problem{
      cause, absl::StrFormat("bucket %d: rank %d has %s%s, rank %d has %s%s",
                             submit.bucket, bucket.first_rank,
                             Describe(bucket.context), end(bucket.last), rank,
                             Describe(context), end(submit.last != 0))};
}

std::optional<Problem> LocalStep::AddParameters(
    uint32_t rank, const protocol::Digest& digest) {
  if (!parameters_rank_.has_value()) {
    parameters_rank_ = rank;
    parameters_ = digest;
  }
  if (digest == parameters_) return std::nullopt;
  return Problem{
      Cause::kParameters,
      absl::StrFormat("parameters differ: %s at rank %d, %s at rank %d",
                      ParametersText(parameters_), *parameters_rank_,
                      ParametersText(digest), rank)};
}

absl::StatusOr<std::optional<Problem>> LocalStep::Add(
    int index, const wire::Submit& submit) {
  RETURN_IF_ERROR(Check(index, submit));
  const uint32_t rank = members_[index].rank;
  const bool whole = submit.filled == submit.elements;
  if (whole) {
    ++next_bucket_[index];
    finished_[index] = submit.last != 0;
  }
  std::optional<Problem> problem;
  if (!Expects(submit.bucket)) {
    problem = {Cause::kLayout,
               absl::StrFormat("rank %d has bucket %d, rank %d has only %d",
                               rank, submit.bucket, buckets_.back().first_rank,
                               buckets_.size())};
    return problem;
  }
  if (submit.bucket == buckets_.size()) {
    Bucket bucket;
    bucket.context = ContextOf(submit);
    bucket.offset = submit.offset;
    bucket.last = submit.last != 0;
    bucket.first_rank = rank;
    bucket.filled.resize(members_.size());
    bucket.reduced = submit.reduced != 0;
    bucket.squares.resize(members_.size());
    buckets_.push_back(std::move(bucket));
  }
  Bucket& bucket = buckets_[submit.bucket];
  bucket.filled[index] = submit.filled;
  bucket.squares[index] = submit.squares;
  problem = Compare(bucket, rank, submit);
  if (!problem && whole && submit.violation != 0 &&
      !PT_WEAKENED(OutsideMaskIgnored)) {
    problem = {Cause::kMask, GetText(submit.violation_text)};
  }
  if (!problem && whole && submit.last != 0) {
    problem = AddParameters(rank, FromWire(submit.parameters));
  }
  if (problem) bucket.broken = true;
  if (!bucket.broken) Sum(bucket);
  return problem;
}

std::shared_ptr<float[]> LocalStep::TakeSum(const Bucket& bucket) {
  const uint32_t index = bucket.context.bucket;
  const uint64_t elements = bucket.context.elements;
  if (sum_memory_.size() <= index) sum_memory_.resize(index + 1);
  SumMemory& memory = sum_memory_[index];
  // Frames of the step before may still be on their way to a peer.
  if (memory.elements != elements || memory.values.use_count() != 1) {
    memory.values = nullptr;  // Before there is more.
    memory = {elements, std::make_shared_for_overwrite<float[]>(elements)};
  }
  return memory.values;
}

void LocalStep::Sum(Bucket& bucket) {
  const std::optional<uint64_t> filled =
      *std::min_element(bucket.filled.begin(), bucket.filled.end());
  if (!filled) return;
  if (bucket.sum == nullptr) {
    bucket.sum = TakeSum(bucket);
  }
  const uint64_t first = std::exchange(bucket.summed, *filled);
  const uint64_t elements = *filled - first;
  std::vector<const float*> terms;
  for (const Member& member : members_) {
    if (bucket.reduced && !terms.empty()) break;
    terms.push_back(
        reinterpret_cast<const float*>(member.slot.data() + bucket.offset) +
        first);
  }
  float* const sum = bucket.sum.get() + first;
  share_out_(elements, [&](uint64_t begin, uint64_t count) {
    std::vector<const float*> parts;
    for (const float* term : terms) parts.push_back(term + begin);
    Combine(bucket.context.op, parts, count, sum + begin);
  });
  if (!measure_ || bucket.context.op != Op::kSum) return;
  if (bucket.reduced) {
    if (bucket.summed != bucket.context.elements) return;
    for (const double squares : bucket.squares) squares_ += squares;
    return;
  }
  // In one order: the figure, too, is the same whoever sums.
  for (const float* term : terms) {
    squares_ += SumOfSquares(term, elements);
  }
}

}  // namespace pactrain::agent
