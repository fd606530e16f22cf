// One bucket of a step, and where its elements lie in the shared memory.
//
// Plain values and pure functions on given memory. Thread-compatible.
#ifndef PACTRAIN_TRAINER_CORE_BUCKET_H_
#define PACTRAIN_TRAINER_CORE_BUCKET_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/mask_plan.h"
#include "trainer/wire.h"

namespace pactrain::trainer {

// Numbers of pt_op, pt_dtype, pt_mode and pt_codec in pactrain.h.
enum class Op : uint8_t { kSum = 1, kXor = 2 };
enum class Dtype : uint8_t { kFloat32 = 1, kBfloat16 = 2 };
enum class Mode : uint8_t { kFull = 1, kCompacted = 2, kTernary = 3 };
enum class Codec : uint8_t {
  kFp32 = 1,
  kBf16 = 2,
  kLevels3 = 3,
  kLevels5 = 4,
  kLevels7 = 5,
  kLevels15 = 6,
  kLevels31 = 7,
};

// A bucket as the training script hands it over; the data stays with the
// caller.
struct Bucket {
  uint32_t index = 0;  // 0, 1, 2, ... within the step.
  uint64_t elements = 0;
  Op op = Op::kSum;
  Dtype dtype = Dtype::kFloat32;    // kFloat32 for kXor: raw 32-bit words.
  wire::Digest128 layout = {};      // Over the bucket's parameters.
  bool last = false;                // The step has no more buckets.
  wire::Digest128 parameters = {};  // With `last`: of the parameters, or zero.
};

// What to copy where: a bucket's place in the slot, and in the result region
// after the commit.
struct Placement {
  Bucket bucket;
  uint64_t offset = 0;      // Bytes from the start of the region.
  uint64_t elements = 0;    // In the slot: kept ones if `mask`, else all.
  Mode mode = Mode::kFull;  // The decision's, or kFull where it does not hold.
  std::shared_ptr<const kernels::MaskPlan> mask;  // Null: all elements.
  bool count_outside = false;  // Elements outside the mask make a violation.

  uint64_t bytes() const { return elements * 4; }
};

// Writes the bucket at `data` (bucket.elements in its dtype) to `slot +
// offset`; returns how many elements outside the mask were not zero (NaN and
// Inf are not zero), 0 unless `count_outside`.
uint64_t WriteBucket(const Placement& placement, const void* data,
                     uint8_t* slot);

// Writes the mean of the bucket (kSum: sum / world_size, kXor: the bits) from
// `result + offset` to `out` in its dtype, zeros outside the mask.
void ReadBucket(const Placement& placement, const uint8_t* result,
                uint32_t world_size, void* out);

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_BUCKET_H_
