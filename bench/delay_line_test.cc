#include "bench/delay_line.h"

#include "gtest/gtest.h"

namespace pactrain::bench {
namespace {

absl::Duration Ms(int ms) { return absl::Milliseconds(ms); }

TEST(DelayLine, APieceComesOutWhenItsTimeHasComeAndNotBefore) {
  DelayLine line(1000);
  line.Put(Ms(3), Ms(10), "a");
  EXPECT_EQ(line.due(), Ms(13));
  EXPECT_EQ(line.Take(Ms(12)), std::nullopt);
  EXPECT_EQ(line.Take(Ms(13)), "a");
  EXPECT_EQ(line.Take(Ms(99)), std::nullopt);
  EXPECT_EQ(line.due(), absl::InfiniteDuration());
}

TEST(DelayLine, AShorterDelayOvertakesNothing) {
  DelayLine line(1000);
  line.Put(Ms(0), Ms(10), "a");
  line.Put(Ms(1), Ms(0), "b");
  EXPECT_EQ(line.Take(Ms(9)), std::nullopt);
  EXPECT_EQ(line.Take(Ms(10)), "a");
  EXPECT_EQ(line.Take(Ms(10)), "b");
}

TEST(DelayLine, IsFullUntilEnoughWasTaken) {
  DelayLine line(3);
  line.Put(Ms(0), Ms(0), "ab");
  EXPECT_FALSE(line.full());
  line.Put(Ms(0), Ms(0), "cd");
  EXPECT_TRUE(line.full());
  line.Take(Ms(0));
  EXPECT_FALSE(line.full());
}

}  // namespace
}  // namespace pactrain::bench
