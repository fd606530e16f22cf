// fp32 to bf16 and back.
//
// To bf16: round to nearest, ties to even; too large becomes Inf; -0 and
// denormals are kept as bf16 has them; a NaN stays a NaN of the same sign (made
// quiet). To fp32: exact.
//
// Pointers need the alignment of their type only; buffers may not overlap.
// Thread-safe.
#ifndef PACTRAIN_KERNELS_BF16_H_
#define PACTRAIN_KERNELS_BF16_H_

#include <cstddef>
#include <cstdint>

namespace pactrain::kernels {

void ToBf16(const float* in, size_t elements, uint16_t* out);
void FromBf16(const uint16_t* in, size_t elements, float* out);

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_BF16_H_
