// The bits as they are, little-endian.
#ifndef PACTRAIN_AGENT_CODEC_FP32_H_
#define PACTRAIN_AGENT_CODEC_FP32_H_

#include "agent/codec/codec.h"

namespace pactrain::agent {

class Fp32Codec : public Codec {
 public:
  Bytes BytesFor(size_t elements) const override {
    return {elements * 4, elements * 4};
  }
  Encoded Encode(const float* in, size_t elements, const Dither& dither,
                 bool shorter, uint8_t* out, float* decoded) const override;
  absl::Status Decode(absl::Span<const uint8_t> in, size_t elements,
                      const Dither& dither, float* out) const override;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CODEC_FP32_H_
