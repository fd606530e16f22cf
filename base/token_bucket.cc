#include "base/token_bucket.h"

#include <algorithm>

#include "base/check.h"

namespace pactrain::base {

TokenBucket::TokenBucket(double bytes_per_second, uint64_t burst_bytes)
    : bytes_per_second_(bytes_per_second), burst_(TimeFor(burst_bytes)) {
  PT_CHECK(bytes_per_second > 0);
}

absl::Duration TokenBucket::Take(uint64_t bytes, absl::Duration now) {
  // An idle bucket has saved up at most one burst.
  const absl::Duration start = std::max(free_at_, now - burst_);
  free_at_ = start + TimeFor(bytes);
  return std::max(start - now, absl::ZeroDuration());
}

absl::Duration TokenBucket::TimeFor(uint64_t bytes) const {
  return absl::Seconds(static_cast<double>(bytes) / bytes_per_second_);
}

}  // namespace pactrain::base
