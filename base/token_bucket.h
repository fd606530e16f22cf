// A rate in bytes per second that several senders share.
//
// Over any span of time the senders get at most rate * span + burst + one take.
//
// Pure: no clock. Thread-compatible.
#ifndef PACTRAIN_BASE_TOKEN_BUCKET_H_
#define PACTRAIN_BASE_TOKEN_BUCKET_H_

#include <cstdint>

#include "absl/time/time.h"

namespace pactrain::base {

class TokenBucket {
 public:
  // REQUIRES: bytes_per_second > 0.
  TokenBucket(double bytes_per_second, uint64_t burst_bytes);

  // Books `bytes` and returns how long to wait before sending them. Bookings
  // are served in the order of the calls, so no sender starves another.
  absl::Duration Take(uint64_t bytes, absl::Duration now);

  double bytes_per_second() const { return bytes_per_second_; }

 private:
  absl::Duration TimeFor(uint64_t bytes) const;

  const double bytes_per_second_;
  const absl::Duration burst_;  // As time at the rate.
  // When everything booked so far has passed at the rate.
  absl::Duration free_at_ = -absl::InfiniteDuration();
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TOKEN_BUCKET_H_
