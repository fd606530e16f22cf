// Counts durations by size, for Prometheus. Thread-compatible. Copyable.
#ifndef PACTRAIN_BASE_HISTOGRAM_H_
#define PACTRAIN_BASE_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace pactrain::base {

struct Histogram {
  // Upper bounds in seconds, inclusive; above the last one: `counts`' last.
  static constexpr std::array<double, 11> kBounds = {
      0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};

  std::array<uint64_t, kBounds.size() + 1> counts = {};
  double sum = 0;

  void Add(double seconds) {
    const auto bound =
        std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
    ++counts[static_cast<size_t>(bound - kBounds.begin())];
    sum += seconds;
  }
  Histogram& operator+=(const Histogram& other) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
    sum += other.sum;
    return *this;
  }
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_HISTOGRAM_H_
