// Which trainer has which memory: a slot of its own, and a result region that
// trainers of one region share for as long as one of them has it.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_LOCAL_MEMORY_TABLE_H_
#define PACTRAIN_AGENT_LOCAL_MEMORY_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/local/shared_memory.h"

namespace pactrain::agent {

struct TrainerBuffers {
  std::shared_ptr<SharedMemory> slot;
  std::shared_ptr<SharedMemory> result;
};

class MemoryTable {
 public:
  // Makes a slot of `bytes` and takes or makes the region's result, of the same
  // size. REQUIRES: a region is always asked for with equal `bytes`.
  //   ResourceExhausted, Internal: as SharedMemory::Create().
  absl::StatusOr<TrainerBuffers> Make(uint64_t trainer,
                                      const std::string& region,
                                      uint64_t bytes);
  // Null pointers if it has none.
  TrainerBuffers Find(uint64_t trainer) const;
  void Release(uint64_t trainer) { buffers_.erase(trainer); }

 private:
  std::map<uint64_t, TrainerBuffers> buffers_;
  std::map<std::string, std::weak_ptr<SharedMemory>> results_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_MEMORY_TABLE_H_
