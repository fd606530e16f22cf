#include "agent/exchange/tcp/traffic.h"

namespace pactrain::agent {
namespace {

// Less busy time than this in a sample says more about the kernel's buffers
// than about the link.
constexpr absl::Duration kMinBusyTime = absl::Milliseconds(50);
constexpr double kNewWeight = 0.3;

}  // namespace

void GoodputMeter::Busy(absl::Duration now) {
  if (busy_) return;
  busy_ = true;
  busy_since_ = now;
}

void GoodputMeter::Idle(absl::Duration now) {
  if (!busy_) return;
  busy_ = false;
  busy_time_ += now - busy_since_;
}

double GoodputMeter::Sample(absl::Duration now) {
  if (busy_) {
    busy_time_ += now - busy_since_;
    busy_since_ = now;
  }
  // Short busy spells add up over several samples.
  if (busy_time_ >= kMinBusyTime) {
    const double rate =
        static_cast<double>(bytes_) / absl::ToDoubleSeconds(busy_time_);
    smoothed_ = smoothed_ == 0
                    ? rate
                    : kNewWeight * rate + (1 - kNewWeight) * smoothed_;
    busy_time_ = absl::ZeroDuration();
    bytes_ = 0;
  }
  return smoothed_;
}

}  // namespace pactrain::agent
