#include "agent/codec/codec.h"

#include "agent/codec/bf16.h"
#include "agent/codec/fp32.h"

namespace pactrain::agent {

const Codec& CodecFor(protocol::Codec codec) {
  static const Fp32Codec fp32;
  static const Bf16Codec bf16;
  if (codec == protocol::Codec::kBf16) return bf16;
  return fp32;
}

}  // namespace pactrain::agent
