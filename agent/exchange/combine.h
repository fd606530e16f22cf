// Adds contributions element by element in the order given: fp32 sums, or the
// XOR of 32-bit words.
#ifndef PACTRAIN_AGENT_EXCHANGE_COMBINE_H_
#define PACTRAIN_AGENT_EXCHANGE_COMBINE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "protocol/types.h"

namespace pactrain::agent {

// At least one term of `elements` each. `out` overlaps none of them.
void Combine(protocol::Op op, absl::Span<const float* const> terms,
             size_t elements, float* out);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_COMBINE_H_
