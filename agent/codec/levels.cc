#include "agent/codec/levels.h"

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

size_t LevelsCodec::BytesFor(size_t elements) const {
  return kernels::LevelsBytes(levels_, elements);
}

EncodeNoise LevelsCodec::Encode(const float* in, size_t elements,
                                const Dither& dither, uint8_t* out) const {
  const kernels::LevelsNoise noise = kernels::EncodeLevels(
      levels_, Checked(elements, dither), in, elements, out);
  return {noise.error_squared, noise.input_squared, noise.clip_squared};
}

absl::Status LevelsCodec::Decode(const uint8_t* in, size_t elements,
                                 const Dither& dither, float* out) const {
  if (kernels::DecodeLevels(levels_, Checked(elements, dither), in, elements,
                            out)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "payload of %d elements in %d levels: a scale or a packed word is one "
      "that no encoder writes; the agents' versions may differ",
      elements, static_cast<int>(levels_)));
}

}  // namespace pactrain::agent
