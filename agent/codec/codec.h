// How float values are written on a link between sites.
//
// Rule: Encode is a function of its arguments alone, so that what a repeated
// attempt sends decodes to the same values; Decode(Encode(x)) is what every
// rank uses, the encoder too.
//
// Thread-safe: codecs have no state.
#ifndef PACTRAIN_AGENT_CODEC_CODEC_H_
#define PACTRAIN_AGENT_CODEC_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "protocol/types.h"

namespace pactrain::agent {

// Names the random numbers of a call; the decoder must be given the encoder's.
// Codecs that round without dither (fp32, bf16) do not look at it.
struct Dither {
  uint64_t key = 0;  // DitherKey() in dither.h.
  // Where in[0] or out[0] lies in its bucket; a multiple of 16.
  uint32_t first_element = 0;
};

// What an encode did to its values, in squares summed up over all elements but
// those of blocks with NaN or Inf. fp32 and bf16 report zeros: the one is
// exact, the other's error (2^-18 of the input's square and less) never decides
// anything.
struct EncodeNoise {
  double error_squared = 0;  // (decoded - in)^2
  double input_squared = 0;  // in^2
  double clip_squared = 0;   // (clipped in - in)^2, the biased part of error
};

struct Encoded {
  size_t bytes = 0;
  EncodeNoise noise;
};

class Codec {
 public:
  virtual ~Codec() = default;
  // What an encode may take. `elements` <= protocol::kChunkElements, here and
  // below. The least and the most are one number where all encodes take as
  // much.
  struct Bytes {
    size_t least = 0;
    size_t most = 0;
  };
  virtual Bytes BytesFor(size_t elements) const = 0;
  // `out` holds BytesFor(elements).most bytes. Both pointers are aligned to 4
  // bytes, and so are Decode's.
  // `shorter`: fewer bytes for more work, where the codec can. What is decoded
  // is the same. `decoded`, unless null, gets what Decode() makes of the bytes,
  // for less work.
  virtual Encoded Encode(const float* in, size_t elements, const Dither& dither,
                         bool shorter, uint8_t* out, float* decoded) const = 0;
  // REQUIRES: so many bytes as BytesFor() allows.
  // InvalidArgument: no encoder writes these bytes; `out` is of no meaning.
  // Never with fp32 and bf16, which take any.
  virtual absl::Status Decode(absl::Span<const uint8_t> in, size_t elements,
                              const Dither& dither, float* out) const = 0;
};

// Lives for ever.
const Codec& CodecFor(protocol::Codec codec);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CODEC_CODEC_H_
