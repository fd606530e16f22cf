#include "agent/codec/levels.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

static_assert(protocol::kChunkElements <= kernels::kMaxLevelsElements);
static_assert(protocol::kFrameElements % kernels::kLevelsBlock == 0);

kernels::LevelsDither Checked(size_t elements, const Dither& dither) {
  PT_CHECK(elements <= kernels::kMaxLevelsElements);
  PT_CHECK(dither.first_element % kernels::kDitherAlignment == 0);
  return {dither.key, dither.first_element};
}

}  // namespace

Codec::Bytes LevelsCodec::BytesFor(size_t elements) const {
  // No frame is empty, which would look like one that is not here yet; else
  // Decode() sees how few there may be.
  return {std::min<size_t>(elements, 1),
          kernels::MaxLevelsBytes(levels_, elements)};
}

Encoded LevelsCodec::Encode(const float* in, size_t elements,
                            const Dither& dither, bool shorter, uint8_t* out,
                            float* decoded) const {
  Encoded encoded;
  const kernels::LevelsNoise noise = kernels::EncodeLevels(
      levels_, Checked(elements, dither),
      shorter ? kernels::LevelsForm::kShorter : kernels::LevelsForm::kPacked,
      in, elements, out, &encoded.bytes, decoded);
  encoded.noise = {noise.error_squared, noise.input_squared,
                   noise.clip_squared};
  return encoded;
}

absl::Status LevelsCodec::Decode(absl::Span<const uint8_t> in, size_t elements,
                                 const Dither& dither, float* out) const {
  if (kernels::DecodeLevels(levels_, Checked(elements, dither),
                            {in.data(), in.size()}, elements, out)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "payload of %d elements in %d levels: its %d bytes are none that an "
      "encoder writes; the agents' versions may differ",
      elements, static_cast<int>(levels_), in.size()));
}

}  // namespace pactrain::agent
