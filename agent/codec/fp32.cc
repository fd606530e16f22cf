#include "agent/codec/fp32.h"

#include <bit>
#include <cstring>

namespace pactrain::agent {

static_assert(std::endian::native == std::endian::little);

void Fp32Codec::Encode(const float* in, size_t elements, uint8_t* out) const {
  if (elements > 0) std::memcpy(out, in, elements * 4);
}

void Fp32Codec::Decode(const uint8_t* in, size_t elements, float* out) const {
  if (elements > 0) std::memcpy(out, in, elements * 4);
}

}  // namespace pactrain::agent
