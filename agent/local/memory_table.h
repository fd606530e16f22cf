// Which trainer has which memory: a slot of its own, and a result region that
// trainers of one region share for as long as one of them has it.
//
// Rule: memory is given to a trainer only if what FULL steps of all trainers
// here need can be had.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_LOCAL_MEMORY_TABLE_H_
#define PACTRAIN_AGENT_LOCAL_MEMORY_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/local/memory_limits.h"
#include "agent/local/memory_reserve.h"
#include "agent/local/shared_memory.h"

namespace pactrain::agent {

struct TrainerBuffers {
  std::shared_ptr<SharedMemory> slot;
  std::shared_ptr<SharedMemory> result;
};

class MemoryTable {
 public:
  using Read = std::function<MemoryNow()>;
  explicit MemoryTable(Read read = [] { return ReadMemory(); })
      : read_(std::move(read)) {}

  // Makes a slot of `bytes` and takes or makes the region's result, of the same
  // size. Their pages are to be reserved before anybody uses them.
  //   FailedPrecondition: the region is there and of another size.
  //   ResourceExhausted, Internal: as CheckReserve() and
  //   SharedMemory::Create(); nothing is made.
  absl::StatusOr<TrainerBuffers> Make(uint64_t trainer,
                                      const std::string& region,
                                      uint64_t bytes);
  // Null pointers if it has none.
  TrainerBuffers Find(uint64_t trainer) const;
  // What it had, for who gives it back to the system away from the event loop:
  // of much memory that takes long, too.
  TrainerBuffers Release(uint64_t trainer);

  // What FULL steps of all trainers here need.
  uint64_t full_reserve() const { return FullReserve(Regions("", 0)); }
  // What can still be had, as the system says now.
  std::optional<AvailableMemory> available() const { return read_().available; }

 private:
  struct Entry {
    std::string region;
    TrainerBuffers buffers;
  };
  // Those in use, with one trainer more in `region` if that is not empty.
  std::vector<MemoryRegion> Regions(const std::string& region,
                                    uint64_t bytes) const;
  uint64_t SharedBytes() const;  // That have their pages.

  const Read read_;
  std::map<uint64_t, Entry> entries_;  // By trainer.
  std::map<std::string, std::weak_ptr<SharedMemory>> results_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_MEMORY_TABLE_H_
