// What a mask set keeps of each parameter, as one packet: the largest by name,
// in the order given, all others together.
//
// Pure. Thread-safe.
#ifndef PACTRAIN_TRAINER_CORE_KEEP_H_
#define PACTRAIN_TRAINER_CORE_KEEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/core/error.h"
#include "trainer/wire.h"

namespace pactrain::trainer {

struct ParameterKeep {
  std::string name;  // Any bytes.
  uint64_t kept = 0;
  uint64_t elements = 0;
};

// Of a name, what is not printable ASCII becomes an escape, and one that is too
// long keeps its end, which says more than its beginning.
//   kInvalidArgument: more is kept than there is, or elements over the limit.
Error MakeKeep(const wire::Digest128& mask_digest,
               const std::vector<ParameterKeep>& parameters,
               wire::Keep* message);

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_KEEP_H_
