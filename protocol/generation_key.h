// A generation and the key that its members hold: who holds it is one of them.
#ifndef PACTRAIN_PROTOCOL_GENERATION_KEY_H_
#define PACTRAIN_PROTOCOL_GENERATION_KEY_H_

#include "base/secret.h"
#include "protocol/types.h"

namespace pactrain::protocol {

struct GenerationKey {
  Digest generation;  // Generation::ComputeDigest().
  base::Secret key;
  bool operator==(const GenerationKey&) const = default;
};

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_GENERATION_KEY_H_
