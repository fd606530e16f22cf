// All PACTRAIN_* variables that there are, and what is wrong with those set.
//
// Pure. Thread-safe.
#ifndef PACTRAIN_COORDINATOR_ADMIN_VARIABLES_H_
#define PACTRAIN_COORDINATOR_ADMIN_VARIABLES_H_

#include <map>
#include <string>
#include <vector>

#include "coordinator/admin/finding.h"

namespace pactrain::coordinator {

// By name.
using Variables = std::map<std::string, std::string>;

// Ascending.
std::vector<std::string> KnownVariables();

// The check "variables" of those whose names begin with PACTRAIN_. What
// Kubernetes makes for services of our names is left alone.
Findings CheckVariables(const Variables& variables);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_VARIABLES_H_
