// How a core has a long loop over elements done: by itself, or by threads that
// its driver lends. The result is the same.
#ifndef PACTRAIN_AGENT_CORE_SHARE_OUT_H_
#define PACTRAIN_AGENT_CORE_SHARE_OUT_H_

#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"

namespace pactrain::agent {

// Calls `part` for parts of [0, elements) that cover each element once, in any
// order or at once, and returns when all calls have.
using ElementPart = absl::FunctionRef<void(uint64_t first, uint64_t elements)>;
using ShareOut = std::function<void(uint64_t elements, ElementPart part)>;

inline void DoAlone(uint64_t elements, ElementPart part) { part(0, elements); }

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_SHARE_OUT_H_
