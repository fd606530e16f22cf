#include "agent/exchange/tcp/traffic.h"

#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

constexpr uint64_t kMega = 1'000'000;

TEST(GoodputMeterTest, IsWhatWasAcknowledgedWhileSomeWasOnItsWay) {
  GoodputMeter meter;
  EXPECT_EQ(meter.Sample(0, absl::ZeroDuration()), 0);
  EXPECT_DOUBLE_EQ(meter.Sample(10 * kMega, absl::Seconds(1)), 10e6);
  // Nothing was sent since: no change.
  EXPECT_DOUBLE_EQ(meter.Sample(10 * kMega, absl::Seconds(1)), 10e6);
  EXPECT_DOUBLE_EQ(meter.Sample(30 * kMega, absl::Seconds(2)), 13e6);
}

TEST(GoodputMeterTest, ShortSpellsAddUp) {
  GoodputMeter meter;
  for (int spell = 1; spell < 5; ++spell) {
    EXPECT_EQ(meter.Sample(spell * kMega, spell * absl::Milliseconds(10)), 0);
  }
  EXPECT_DOUBLE_EQ(meter.Sample(5 * kMega, absl::Milliseconds(50)), 100e6);
}

// Pings between two steps say nothing, also of the next step.
TEST(GoodputMeterTest, LongTimesForFewBytesDoNotCount) {
  GoodputMeter meter;
  EXPECT_DOUBLE_EQ(meter.Sample(10 * kMega, absl::Seconds(1)), 10e6);
  EXPECT_DOUBLE_EQ(meter.Sample(10 * kMega + 600, absl::Seconds(3)), 10e6);
  EXPECT_DOUBLE_EQ(meter.Sample(20 * kMega + 600, absl::Seconds(4)), 10e6);
}

// The second was alone on the link for half of the time: twice its share.
TEST(UplinkShareTest, IsAnEqualPartOfWhatTheLinkCarried) {
  UplinkShare share;
  EXPECT_EQ(share.Sample({}), 0);
  const Carried first = {4 * kMega, absl::Milliseconds(500)};
  const Carried second = {8 * kMega, absl::Seconds(1)};
  EXPECT_DOUBLE_EQ(share.Sample({first, second}), 6e6);
  const Carried pings = {600, absl::Milliseconds(2)};
  EXPECT_DOUBLE_EQ(share.Sample({first, pings, second}), 6e6);
  for (int tick = 0; tick < 1000; ++tick) {
    EXPECT_DOUBLE_EQ(share.Sample({pings, pings}), 6e6) << "idle";
  }
}

// The last frames of a step go by one connection, in a tick of their own.
TEST(UplinkShareTest, OneThatIsLateIsNotAloneOnTheLink) {
  UplinkShare share;
  const Carried equal = {3 * kMega, absl::Seconds(1)};
  EXPECT_DOUBLE_EQ(share.Sample({equal, equal, equal, equal}), 3e6);
  const Carried late = {12 * kMega, absl::Seconds(1)}, none;
  EXPECT_LT(share.Sample({late, none, none, none}), 4e6);
  EXPECT_DOUBLE_EQ(share.Sample({equal, equal, equal, equal}), 3e6);
}

TEST(SendRateTest, IsThatOfTheLinkThatTakesLongest) {
  TrafficBySite traffic;
  EXPECT_EQ(SendRate(traffic, "own"), 0);
  traffic["own"].sent_bytes = 900 * kMega;
  traffic["own"].best_bytes_per_second = 1e9;
  traffic["a"].sent_bytes = 60 * kMega;
  EXPECT_EQ(SendRate(traffic, "own"), 0) << "no link was measured";
  traffic["a"].best_bytes_per_second = 10e6;
  EXPECT_DOUBLE_EQ(SendRate(traffic, "own"), 10e6);
  // 30 MB more leave at the same time, twice as fast: 90 MB in six seconds.
  traffic["b"].sent_bytes = 30 * kMega;
  traffic["b"].best_bytes_per_second = 20e6;
  EXPECT_DOUBLE_EQ(SendRate(traffic, "own"), 15e6);
}

}  // namespace
}  // namespace pactrain::agent
