#include "agent/codec/fp32.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace pactrain::agent {

static_assert(std::endian::native == std::endian::little);

Encoded Fp32Codec::Encode(const float* in, size_t elements, const Dither&, bool,
                          uint8_t* out, float* decoded) const {
  if (elements > 0) std::memcpy(out, in, elements * 4);
  if (elements > 0 && decoded != nullptr) {
    std::memcpy(decoded, in, elements * 4);
  }
  return {elements * 4, {}};
}

absl::Status Fp32Codec::Decode(absl::Span<const uint8_t> in, size_t elements,
                               const Dither&, float* out) const {
  PT_CHECK(in.size() == elements * 4);
  if (elements > 0) std::memcpy(out, in.data(), elements * 4);
  return absl::OkStatus();
}

}  // namespace pactrain::agent
