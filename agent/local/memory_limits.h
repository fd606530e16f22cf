// Reads what memory the kernel will give to this process.
#ifndef PACTRAIN_AGENT_LOCAL_MEMORY_LIMITS_H_
#define PACTRAIN_AGENT_LOCAL_MEMORY_LIMITS_H_

#include <string>

#include "agent/local/memory_reserve.h"

namespace pactrain::agent {

// The least of /proc/meminfo's MemAvailable and what the limits of the cgroups
// (version 1 or 2) above this process leave; caches that can be dropped count
// as available. `root` goes before each path, for tests. Thread-safe.
MemoryNow ReadMemory(const std::string& root = "");

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_MEMORY_LIMITS_H_
