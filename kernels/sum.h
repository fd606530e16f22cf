// Adds k buffers element by element in fp32, always in the order given:
// ((in[0] + in[1]) + in[2]) + ...
//
// The result has the same bits on every CPU: a NaN result is always 0x7fc00000,
// whatever NaNs went in (two sites that add the same numbers on different CPUs
// must get equal digests). For that reason one buffer alone is not a plain
// copy.
//
// Buffers need float alignment only; `out` may be one of the inputs, otherwise
// it may not overlap them. Thread-safe.
#ifndef PACTRAIN_KERNELS_SUM_H_
#define PACTRAIN_KERNELS_SUM_H_

#include <cstddef>

namespace pactrain::kernels {

// `buffers` >= 1.
void Sum(const float* const* in, size_t buffers, size_t elements, float* out);

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_SUM_H_
