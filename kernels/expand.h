// Puts packed elements back to their places, +0 everywhere else.
//
// `in` and `out` are whole buckets as in compact.h; tiles [first, end) write
// exactly their elements of `out`. Bits are copied as they are by Expand();
// ExpandDivide() and Divide() round x / divisor as IEEE 754 does in fp32.
//
// `in` and `out` need float alignment only and may not overlap (Divide: may be
// equal). Thread-safe.
#ifndef PACTRAIN_KERNELS_EXPAND_H_
#define PACTRAIN_KERNELS_EXPAND_H_

#include <cstddef>

#include "kernels/mask_plan.h"

namespace pactrain::kernels {

void Expand(const MaskPlan& plan, TileRange tiles, const float* in, float* out);

// `divisor`: not 0 or NaN.
void ExpandDivide(const MaskPlan& plan, TileRange tiles, const float* in,
                  float divisor, float* out);

// The same for a bucket that was sent whole: out[i] = in[i] / divisor.
void Divide(const float* in, size_t elements, float divisor, float* out);

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_EXPAND_H_
