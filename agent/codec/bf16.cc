#include "agent/codec/bf16.h"

#include <bit>

#include "base/check.h"
#include "kernels/bf16.h"

namespace pactrain::agent {

static_assert(std::endian::native == std::endian::little);

Encoded Bf16Codec::Encode(const float* in, size_t elements, const Dither&, bool,
                          uint8_t* out, float* decoded) const {
  auto* half = reinterpret_cast<uint16_t*>(out);
  kernels::ToBf16(in, elements, half);
  if (decoded != nullptr) kernels::FromBf16(half, elements, decoded);
  return {elements * 2, {}};
}

absl::Status Bf16Codec::Decode(absl::Span<const uint8_t> in, size_t elements,
                               const Dither&, float* out) const {
  PT_CHECK(in.size() == elements * 2);
  kernels::FromBf16(reinterpret_cast<const uint16_t*>(in.data()), elements,
                    out);
  return absl::OkStatus();
}

}  // namespace pactrain::agent
