// The key of an encoder's dither.
#ifndef PACTRAIN_AGENT_CODEC_DITHER_H_
#define PACTRAIN_AGENT_CODEC_DITHER_H_

#include <cstdint>

#include "protocol/frame.h"

namespace pactrain::agent {

// Equal at the encoder and at all who decode its bytes; different for every two
// encodes whose results are added, or that follow each other in a training:
// with equal keys the errors of like inputs are alike, and add up instead of
// averaging out. Hence the encoder's site and the leg. Not the attempt: a
// repeated one sends the same bytes. Nor the job's name, which differs between
// runs that are to be equal; `step` is counted from the job's start, too.
uint64_t DitherKey(uint16_t model, uint64_t step, uint32_t bucket,
                   uint16_t encoder_site, protocol::Leg leg);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CODEC_DITHER_H_
