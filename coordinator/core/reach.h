// Which agents can be in one generation: of any two, one must be able to dial
// the other.
//
// Pure. Thread-safe.
#ifndef PACTRAIN_COORDINATOR_CORE_REACH_H_
#define PACTRAIN_COORDINATOR_CORE_REACH_H_

#include <optional>
#include <string>

#include "coordinator/core/membership.h"

namespace pactrain::coordinator {

// Why the agents of two trainers could never exchange, naming both; nothing:
// they can, as far as their addresses tell.
std::optional<std::string> WhyNeitherDials(const Candidate& a,
                                           const Candidate& b);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_REACH_H_
