#include "agent/core/device_paths.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

constexpr uint8_t kCpu = 0, kDevice = 2, kNccl = 3;
constexpr const char* kNames[] = {"cpu", "torch", "device", "nccl"};

// As it is now, by what the collective says.
DevicePath Now(DevicePath trainer, const Collective& collective) {
  if (trainer.path == kCpu) trainer.reason = "its model is on a CPU";
  const Collective::Phase phase = collective.phase();
  if (trainer.path != kNccl || phase == Collective::Phase::kReady) {
    return trainer;
  }
  trainer.path = kDevice;
  trainer.reason =
      absl::StrCat("not by NCCL: ", phase == Collective::Phase::kOff
                                        ? collective.reason()
                                        : "its communicator is not open yet");
  return trainer;
}

std::string Printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char c) { return !absl::ascii_isprint(c); }, '?');
  return text.substr(0, protocol::kMaxMoved);
}

}  // namespace

std::optional<protocol::DevicePath> PathOfNode(
    const std::vector<DevicePath>& trainers, const Collective& collective) {
  std::vector<std::string> names, reasons;
  bool alike = true;
  for (const DevicePath& trainer : trainers) {
    const DevicePath now = Now(trainer, collective);
    const std::string name = kNames[now.path];
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
    reasons.push_back(now.reason);
    alike = alike && now.reason == reasons.front();
  }
  if (names.empty() || names == std::vector<std::string>{kNames[kCpu]}) {
    return std::nullopt;
  }
  if (!alike) {
    for (size_t i = 0; i < trainers.size(); ++i) {
      reasons[i] = absl::StrCat("rank ", trainers[i].rank, ": ", reasons[i]);
    }
  }
  const CollectiveCounters& counters = collective.counters();
  return protocol::DevicePath{
      absl::StrJoin(names, ", "),
      Printable(alike ? reasons[0] : absl::StrJoin(reasons, "; ")),
      counters.taken_buckets,
      std::accumulate(counters.fallbacks.begin(), counters.fallbacks.end(),
                      uint64_t{0})};
}

}  // namespace pactrain::agent
