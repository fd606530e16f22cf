// What FULL steps need of a node's memory, and whether it is there: known when
// a trainer attaches, and not when the kernel ends somebody in a step.
//
// Pure.
#ifndef PACTRAIN_AGENT_LOCAL_MEMORY_RESERVE_H_
#define PACTRAIN_AGENT_LOCAL_MEMORY_RESERVE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace pactrain::agent {

// Trainers that share a result.
struct MemoryRegion {
  uint64_t trainers = 0;
  uint64_t bytes = 0;  // Of each slot, and of the result.
};

// What can still be had.
struct AvailableMemory {
  uint64_t bytes = 0;
  std::string where;  // Whose limit it is: "the machine", "cgroup /a/b".
};

// What a process sees of memory.
struct MemoryNow {
  std::optional<AvailableMemory> available;  // Nothing: the system tells none.
  uint64_t private_bytes = 0;                // That it has itself, not shared.
};

// Of a FULL step: the slots and the result, which are shared memory and there
// from attach on; the sum of the slots, and as much in frames under way, which
// come with the first step. A COMPACTED step touches the kept part of each.
uint64_t FullReserve(const MemoryRegion& region);
uint64_t FullReserve(const std::vector<MemoryRegion>& regions);

// Whether `regions` can be had where `shared_bytes` of them are there already.
//   ResourceExhausted: names the bytes needed, those there, and whose limit
//   that is.
absl::Status CheckReserve(const std::vector<MemoryRegion>& regions,
                          uint64_t shared_bytes, const MemoryNow& now);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_MEMORY_RESERVE_H_
