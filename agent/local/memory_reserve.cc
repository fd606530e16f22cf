#include "agent/local/memory_reserve.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace pactrain::agent {
namespace {

constexpr uint64_t kSumAndFrames = 2;
constexpr uint64_t kResult = 1;

}  // namespace

uint64_t FullReserve(const MemoryRegion& region) {
  return (region.trainers + kResult + kSumAndFrames) * region.bytes;
}

uint64_t FullReserve(const std::vector<MemoryRegion>& regions) {
  uint64_t bytes = 0;
  for (const MemoryRegion& region : regions) bytes += FullReserve(region);
  return bytes;
}

absl::Status CheckReserve(const std::vector<MemoryRegion>& regions,
                          uint64_t shared_bytes, const MemoryNow& now) {
  if (!now.available.has_value()) return absl::OkStatus();
  uint64_t most_private = 0;
  uint64_t trainers = 0;
  for (const MemoryRegion& region : regions) {
    most_private += kSumAndFrames * region.bytes;
    trainers += region.trainers;
  }
  const uint64_t reserve = FullReserve(regions);
  // Sums and frames of the last step are there still, or their memory is.
  const uint64_t taken =
      shared_bytes + std::min(now.private_bytes, most_private);
  const uint64_t needed = reserve - std::min(reserve, taken);
  if (needed <= now.available->bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "FULL steps of ", trainers, " trainers here need ", reserve,
      " bytes of memory, ", needed, " more than the agent has, and ",
      now.available->where, " has ", now.available->bytes, " available"));
}

}  // namespace pactrain::agent
