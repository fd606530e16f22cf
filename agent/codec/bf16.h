// The upper half of a float, rounded to nearest even; NaN stays NaN.
#ifndef PACTRAIN_AGENT_CODEC_BF16_H_
#define PACTRAIN_AGENT_CODEC_BF16_H_

#include "agent/codec/codec.h"

namespace pactrain::agent {

class Bf16Codec : public Codec {
 public:
  Bytes BytesFor(size_t elements) const override {
    return {elements * 2, elements * 2};
  }
  Encoded Encode(const float* in, size_t elements, const Dither& dither,
                 bool shorter, uint8_t* out, float* decoded) const override;
  absl::Status Decode(absl::Span<const uint8_t> in, size_t elements,
                      const Dither& dither, float* out) const override;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CODEC_BF16_H_
