// How float values are written on a link between sites.
//
// Rule: Encode is a function of its input alone, so that a repeated attempt
// sends the same bytes; Decode(Encode(x)) is what every rank uses, the encoder
// too.
//
// Thread-safe: codecs have no state.
#ifndef PACTRAIN_AGENT_CODEC_CODEC_H_
#define PACTRAIN_AGENT_CODEC_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "protocol/types.h"

namespace pactrain::agent {

class Codec {
 public:
  virtual ~Codec() = default;
  virtual size_t BytesFor(size_t elements) const = 0;
  // `out` holds BytesFor(elements) bytes. Both pointers are aligned to 4 bytes.
  virtual void Encode(const float* in, size_t elements, uint8_t* out) const = 0;
  virtual void Decode(const uint8_t* in, size_t elements, float* out) const = 0;
};

// Lives for ever.
const Codec& CodecFor(protocol::Codec codec);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CODEC_CODEC_H_
