#include "agent/local/memory_table.h"

#include "base/check.h"
#include "base/status_macros.h"

namespace pactrain::agent {

absl::StatusOr<TrainerBuffers> MemoryTable::Make(uint64_t trainer,
                                                 const std::string& region,
                                                 uint64_t bytes) {
  using TrainerMay = SharedMemory::TrainerMay;
  TrainerBuffers buffers;
  std::erase_if(results_,
                [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<SharedMemory>& result = results_[region];
  buffers.result = result.lock();
  if (buffers.result == nullptr) {
    ASSIGN_OR_RETURN(
        buffers.result,
        SharedMemory::Create("pactrain-result", bytes, TrainerMay::kOnlyRead));
    result = buffers.result;
  }
  PT_CHECK(buffers.result->bytes().size() == bytes);
  ASSIGN_OR_RETURN(buffers.slot, SharedMemory::Create("pactrain-slot", bytes,
                                                      TrainerMay::kWrite));
  buffers_[trainer] = buffers;
  return buffers;
}

TrainerBuffers MemoryTable::Find(uint64_t trainer) const {
  const auto it = buffers_.find(trainer);
  return it == buffers_.end() ? TrainerBuffers() : it->second;
}

}  // namespace pactrain::agent
