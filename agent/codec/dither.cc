#include "agent/codec/dither.h"

#include "base/digest.h"

namespace pactrain::agent {

uint64_t DitherKey(uint16_t model, uint64_t step, uint32_t bucket,
                   uint16_t encoder_site, protocol::Leg leg) {
  return base::DigestBuilder()
      .Add("dither")
      .Add(uint64_t{model})
      .Add(step)
      .Add(uint64_t{bucket})
      .Add(uint64_t{encoder_site})
      .Add(uint64_t{static_cast<uint8_t>(leg)})
      .Build()
      .lo;
}

}  // namespace pactrain::agent
