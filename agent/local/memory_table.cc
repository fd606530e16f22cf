#include "agent/local/memory_table.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace pactrain::agent {

absl::StatusOr<TrainerBuffers> MemoryTable::Make(uint64_t trainer,
                                                 const std::string& region,
                                                 uint64_t bytes) {
  using TrainerMay = SharedMemory::TrainerMay;
  std::erase_if(results_,
                [](const auto& entry) { return entry.second.expired(); });
  RETURN_IF_ERROR(CheckReserve(Regions(region, bytes), SharedBytes(), read_()));
  TrainerBuffers buffers;
  std::weak_ptr<SharedMemory>& result = results_[region];
  buffers.result = result.lock();
  if (buffers.result == nullptr) {
    ASSIGN_OR_RETURN(
        buffers.result,
        SharedMemory::Create("pactrain-result", bytes, TrainerMay::kOnlyRead));
    result = buffers.result;
  }
  if (buffers.result->bytes().size() != bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("a slot of ", bytes,
                     " bytes, and trainers of the same launch here have "
                     "slots of ",
                     buffers.result->bytes().size(), " bytes"));
  }
  ASSIGN_OR_RETURN(buffers.slot, SharedMemory::Create("pactrain-slot", bytes,
                                                      TrainerMay::kWrite));
  entries_[trainer] = {region, buffers};
  return buffers;
}

TrainerBuffers MemoryTable::Release(uint64_t trainer) {
  const auto it = entries_.find(trainer);
  if (it == entries_.end()) return {};
  TrainerBuffers buffers = std::move(it->second.buffers);
  entries_.erase(it);
  return buffers;
}

TrainerBuffers MemoryTable::Find(uint64_t trainer) const {
  const auto it = entries_.find(trainer);
  return it == entries_.end() ? TrainerBuffers() : it->second.buffers;
}

std::vector<MemoryRegion> MemoryTable::Regions(const std::string& region,
                                               uint64_t bytes) const {
  std::map<std::string, MemoryRegion> by_name;
  if (!region.empty()) by_name[region] = {1, bytes};
  for (const auto& [trainer, entry] : entries_) {
    MemoryRegion& of = by_name[entry.region];
    ++of.trainers;
    of.bytes = entry.buffers.slot->bytes().size();
  }
  std::vector<MemoryRegion> regions;
  for (const auto& [name, of] : by_name) regions.push_back(of);
  return regions;
}

uint64_t MemoryTable::SharedBytes() const {
  uint64_t bytes = 0;
  for (const auto& [trainer, entry] : entries_) {
    bytes += entry.buffers.slot->reserved();
  }
  for (const auto& [region, memory] : results_) {
    if (const auto result = memory.lock()) bytes += result->reserved();
  }
  return bytes;
}

}  // namespace pactrain::agent
