#include "base/token_bucket.h"

#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

TEST(TokenBucket, BytesPerSecondNeverExceedTheRatePlusOneBurst) {
  TokenBucket bucket(1e6, 32 << 10);
  absl::Duration now = absl::Seconds(100);
  uint64_t sent = 0;
  // Three greedy senders that wait as they are told.
  while (now < absl::Seconds(110)) {
    for (int sender = 0; sender < 3; ++sender) {
      const absl::Duration wait = bucket.Take(10000, now);
      if (sender == 2) now += wait;
      sent += 10000;
    }
  }
  EXPECT_NEAR(static_cast<double>(sent), 10e6, 10e4);
}

TEST(TokenBucket, IdleTimeSavesUpOneBurstOnly) {
  TokenBucket bucket(1000, 500);
  EXPECT_EQ(bucket.Take(500, absl::Seconds(50)), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(500, absl::Seconds(50)), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(1, absl::Seconds(50)), absl::Milliseconds(500));
}

}  // namespace
}  // namespace pactrain::base
