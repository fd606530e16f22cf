// Packs the kept elements of a bucket, in order.
//
// `in` is the whole bucket (plan.elements() floats) and `out` the whole packed
// bucket (plan.kept() floats), also when only some tiles are asked for: tiles
// [first, end) write exactly out[OutputOffset(first), OutputOffset(end)) and
// may run at the same time as other tiles. Bits are copied as they are (NaN
// payloads, -0).
//
// `in` and `out` need float alignment only and may not overlap. Thread-safe.
#ifndef PACTRAIN_KERNELS_COMPACT_H_
#define PACTRAIN_KERNELS_COMPACT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/mask_plan.h"

namespace pactrain::kernels {

void Compact(const MaskPlan& plan, TileRange tiles, const float* in,
             float* out);

// The same, and returns the number of elements outside the mask that are not
// zero: NaN and Inf count, -0 does not.
uint64_t CompactAndCount(const MaskPlan& plan, TileRange tiles, const float* in,
                         float* out);

// Only counts.
uint64_t CountOutside(const MaskPlan& plan, TileRange tiles, const float* in);

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_COMPACT_H_
