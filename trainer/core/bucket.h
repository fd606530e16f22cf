// One bucket of a step, and where its elements lie in the shared memory.
//
// Plain values and pure functions on given memory. Thread-compatible.
#ifndef PACTRAIN_TRAINER_CORE_BUCKET_H_
#define PACTRAIN_TRAINER_CORE_BUCKET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/mask_plan.h"
#include "trainer/membership_abi.h"
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

// Where a bucket's elements lie with the caller, in its dtype: one after the
// other in pieces of memory.
class Parts {
 public:
  Parts() = default;
  // Those without elements are left out.
  explicit Parts(const std::vector<pt_part>& parts);

  uint64_t elements() const { return ends_.empty() ? 0 : ends_.back(); }
  size_t size() const { return parts_.size(); }
  const void* data(size_t part) const { return parts_[part].data; }
  // The part's elements are [begin, end) of the bucket.
  uint64_t begin(size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }
  uint64_t end(size_t part) const { return ends_[part]; }
  // The part that holds an element. REQUIRES: element < elements().
  size_t Find(uint64_t element) const;
  // Whether one of them lies where as many elements from `memory` on do.
  bool Overlaps(const void* memory, Dtype dtype) const;

 private:
  std::vector<pt_part> parts_;
  std::vector<uint64_t> ends_;
};

// What to copy where: a bucket's place in the slot, and in the result region.
struct Placement {
  Bucket bucket;
  uint64_t offset = 0;      // Bytes from the start of the region.
  uint64_t elements = 0;    // In the slot: kept ones if `mask`, else all.
  Mode mode = Mode::kFull;  // The decision's, or kFull where it does not hold.
  std::shared_ptr<const kernels::MaskPlan> mask;  // Null: all elements.
  bool dense = false;          // All elements, in an attempt that is DENSE.
  bool count_outside = false;  // Elements outside the mask make a violation.

  uint64_t bytes() const { return elements * 4; }
  // A bucket is written tile by tile (kernels::MaskPlan), the last one short.
  size_t tiles() const;
  // Elements of the slot that the tiles before `tile` fill; <= tiles().
  uint64_t FilledBefore(size_t tile) const;
  // The end of the tiles from `first` on that these elements of the slot fill.
  size_t FilledTiles(size_t first, uint64_t filled) const;
};

// The tiles from `first` on that are written before the agent is told: what is
// worth a message, in a bucket's last piece all that are left.
kernels::TileRange PieceFrom(const Placement& placement, size_t first);

// Writes these tiles of the bucket to their place behind `slot + offset`;
// returns how many of their elements outside the mask were not zero (NaN and
// Inf are not zero), 0 unless `count_outside`.
// REQUIRES: parts.elements() == bucket.elements.
uint64_t WriteTiles(const Placement& placement, kernels::TileRange tiles,
                    const Parts& parts, uint8_t* slot);

// The same of a bucket whose kept elements lie at `packed`, one after the other
// in fp32; without a mask all are.
void WritePacked(const Placement& placement, kernels::TileRange tiles,
                 const void* packed, uint8_t* slot);

// Writes the mean (kSum: sum / world_size, kXor: the bits) of these tiles from
// `result + offset` to their place in `out`, which holds bucket.elements in its
// dtype; zeros outside the mask.
void ReadTiles(const Placement& placement, kernels::TileRange tiles,
               const uint8_t* result, uint32_t world_size, void* out);
// The sums themselves, of what is kept alone.
void ReadPacked(const Placement& placement, kernels::TileRange tiles,
                const uint8_t* result, void* packed);

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_BUCKET_H_
