#include "agent/codec/fp32.h"

#include <bit>
#include <cstring>

namespace pactrain::agent {

static_assert(std::endian::native == std::endian::little);

EncodeNoise Fp32Codec::Encode(const float* in, size_t elements, const Dither&,
                              uint8_t* out) const {
  if (elements > 0) std::memcpy(out, in, elements * 4);
  return {};
}

absl::Status Fp32Codec::Decode(const uint8_t* in, size_t elements,
                               const Dither&, float* out) const {
  if (elements > 0) std::memcpy(out, in, elements * 4);
  return absl::OkStatus();
}

}  // namespace pactrain::agent
