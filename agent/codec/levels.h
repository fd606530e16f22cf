// The n-level codec (kernels/levels.h) as one of the codecs: 3, 5, 7, 15 or 31
// levels with subtractive dither.
#ifndef PACTRAIN_AGENT_CODEC_LEVELS_H_
#define PACTRAIN_AGENT_CODEC_LEVELS_H_

#include "agent/codec/codec.h"
#include "kernels/levels.h"

namespace pactrain::agent {

class LevelsCodec : public Codec {
 public:
  explicit LevelsCodec(kernels::Levels levels) : levels_(levels) {}
  Bytes BytesFor(size_t elements) const override;
  Encoded Encode(const float* in, size_t elements, const Dither& dither,
                 bool shorter, uint8_t* out, float* decoded) const override;
  absl::Status Decode(absl::Span<const uint8_t> in, size_t elements,
                      const Dither& dither, float* out) const override;

 private:
  const kernels::Levels levels_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CODEC_LEVELS_H_
