#include "agent/exchange/tcp/traffic.h"

#include <algorithm>

namespace pactrain::agent {
namespace {

// Less says more about the clock, which counts in milliseconds.
constexpr absl::Duration kMinBusyTime = absl::Milliseconds(50);
// Less in that time, such as pings, says more about round trips than the rate.
constexpr uint64_t kMinBytes = 16 << 10;
constexpr double kNewWeight = 0.3;

}  // namespace

double SendRate(const TrafficBySite& traffic, const std::string& own) {
  double sent = 0, longest = 0;
  for (const auto& [site, link] : traffic) {
    if (site == own) continue;
    const auto bytes = static_cast<double>(link.sent_bytes);
    sent += bytes;
    if (link.best_bytes_per_second > 0) {
      longest = std::max(longest, bytes / link.best_bytes_per_second);
    }
  }
  return longest > 0 ? sent / longest : 0;
}

double GoodputMeter::Sample(uint64_t acknowledged, absl::Duration busy) {
  const uint64_t bytes = acknowledged - acknowledged_;
  const absl::Duration time = busy - busy_;
  if (time < kMinBusyTime) return smoothed_;  // Short spells add up.
  if (bytes >= kMinBytes) {
    const double rate =
        static_cast<double>(bytes) / absl::ToDoubleSeconds(time);
    smoothed_ = smoothed_ == 0
                    ? rate
                    : kNewWeight * rate + (1 - kNewWeight) * smoothed_;
  }
  acknowledged_ = acknowledged;
  busy_ = busy;
  return smoothed_;
}

double UplinkShare::Sample(absl::Span<const Carried> carried) {
  absl::Duration longest;
  double carrying = 0;
  for (const Carried& one : carried) {
    if (one.bytes < kMinBytes) continue;  // Pings.
    all_.bytes += one.bytes;
    longest = std::max(longest, one.busy);
    ++carrying;
  }
  all_.busy += longest;
  // A step's last frames go by few of them, and the next step by all.
  if (carrying > 0) {
    carrying_ = std::max(carrying,
                         kNewWeight * carrying + (1 - kNewWeight) * carrying_);
  }
  return meter_.Sample(all_.bytes, all_.busy) / carrying_;
}

}  // namespace pactrain::agent
