#include "agent/exchange/tcp/flight_limit.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

TEST(InFlightBytesTest, IsTwiceWhatTheLinkHoldsATurnAndALittle) {
  EXPECT_EQ(InFlightBytes(0, absl::ZeroDuration()), kLeastInFlightBytes);
  EXPECT_EQ(InFlightBytes(100e6, absl::Milliseconds(1)),
            2'700'000u + kLeastInFlightBytes);
  EXPECT_EQ(InFlightBytes(100e6, absl::Milliseconds(4)),
            3'300'000u + kLeastInFlightBytes);
  EXPECT_EQ(InFlightBytes(0, absl::ZeroDuration(), 7), 7u);
}

// Two senders that share a queue hold each other up by what both have in it:
// a rate is one's share of that. The one that was left behind catches up.
TEST(InFlightBytesTest, OfTwoDirectionsTheStarvedOneGetsItsShare) {
  constexpr double kLink = 12.5e6;
  double much = kLink, little = kLink / 10;
  for (int update = 0; update < 60; ++update) {
    const double held = InFlightBytes(much, absl::ZeroDuration());
    little = kLink * InFlightBytes(little, absl::ZeroDuration()) / held;
  }
  EXPECT_GT(little, 0.95 * kLink);
}

TcpState After(absl::Duration least_rtt, uint64_t acknowledged) {
  return {
      .least_rtt = least_rtt, .rtt = least_rtt, .acknowledged = acknowledged};
}

TEST(FarnessTest, IsByTheLeastRoundTrip) {
  Farness farness(absl::Milliseconds(5));
  EXPECT_FALSE(farness.far());
  EXPECT_TRUE(farness.Update(After(absl::Milliseconds(5), 1000)));
  EXPECT_TRUE(farness.Update(After(absl::Milliseconds(30), 2000)));
  EXPECT_FALSE(farness.Update(After(absl::Milliseconds(4), 3000)));
  EXPECT_FALSE(
      Farness(absl::Milliseconds(5)).Update(After(absl::Milliseconds(1), 0)));
}

// The pings of an idle connection wait behind what fills the link.
TEST(FarnessTest, AnIdleConnectionDoesNotBecomeFar) {
  constexpr absl::Duration kQueue = absl::Milliseconds(30);
  Farness farness(absl::Milliseconds(5));
  EXPECT_FALSE(farness.Update(After(absl::Milliseconds(1), 1000)));
  for (uint64_t pings = 1; pings < 1000; ++pings) {
    EXPECT_FALSE(farness.Update(After(kQueue, 1000 + 100 * pings)));
  }
  // What it carries itself tells.
  EXPECT_TRUE(farness.Update(After(kQueue, 1'000'000)));
  EXPECT_TRUE(farness.Update(After(kQueue, 1'000'100)));
}

TEST(FarnessTest, WhatWaitsInFrontOfALinkDoesNotTell) {
  Farness farness(absl::Milliseconds(5));
  EXPECT_FALSE(farness.Update(After(absl::Milliseconds(1), 1000)));
  TcpState queued = After(absl::Milliseconds(11), 1'000'000);
  queued.rtt = absl::Milliseconds(50);
  EXPECT_FALSE(farness.Update(queued));
  EXPECT_TRUE(farness.Update(After(absl::Milliseconds(11), 2'000'000)));
}

TcpState At(double bytes_per_second) {
  TcpState state = After(absl::ZeroDuration(), 1000);
  state.bytes_per_second = bytes_per_second;
  return state;
}

// Of one link each gets what it holds there: who ran ahead must not hold more.
TEST(FlightLimitTest, ConnectionsThatShareALinkHoldTheSame) {
  const auto shared = [](double rate) {
    return InFlightBytes(rate, absl::ZeroDuration(), kLeastSharedBytes);
  };
  FlightLimit ahead(kFarRtt), behind(kFarRtt), slow(kFarRtt);
  ahead.Update(At(8e6), 3e6);
  behind.Update(At(2e6), 3e6);
  EXPECT_EQ(ahead.bytes(), shared(3e6));
  EXPECT_EQ(behind.bytes(), ahead.bytes());
  // Its own link takes little: no long queue there.
  slow.Update(At(1e6), 3e6);
  EXPECT_EQ(slow.bytes(), shared(2e6));
  // It came back just now.
  FlightLimit fresh(kFarRtt);
  fresh.Update(At(0), 3e6);
  EXPECT_EQ(fresh.bytes(), ahead.bytes());
  // Of a far one what it holds is on its way.
  FlightLimit far(absl::ZeroDuration());
  far.Update(At(8e6), 3e6);
  EXPECT_EQ(far.bytes(), InFlightBytes(8e6, absl::ZeroDuration()));
  ahead.Update(At(8e6));
  EXPECT_EQ(ahead.bytes(), InFlightBytes(8e6, absl::ZeroDuration()));
}

constexpr absl::Duration kRtt = absl::Milliseconds(20);
constexpr uint64_t kSegment = 1000;
constexpr uint64_t kStretch = 4 << 20;

// With so many segments on their way while it is busy.
TcpState Lossy(uint64_t sent, uint64_t sent_again, double segments) {
  return {
      .least_rtt = kRtt,
      .rtt = kRtt,
      .acknowledged = sent - sent_again,
      .sent = sent,
      .sent_again = sent_again,
      .segment_bytes = kSegment,
      .bytes_per_second = segments * kSegment / absl::ToDoubleSeconds(kRtt)};
}

// A stretch after the other, `again` bytes of which are sent a second time.
template <typename T>
void Lose(T& to, const std::vector<uint64_t>& again, double segments = 100) {
  uint64_t sent = 0, sent_again = 0;
  for (const uint64_t bytes : again) {
    to.Update(Lossy(sent += kStretch, sent_again += bytes, segments));
  }
}

// 100 segments on their way need that at most 1 of 6667 bytes is lost: 629 of a
// stretch. With a quarter of that they are not held back.
TEST(LossesTest, AreManyWhereTheyCouldBeWhatLimitsAConnection) {
  Losses few, many, short_way;
  Lose(few, {150, 150, 150, 150});
  EXPECT_FALSE(few.many());
  Lose(many, {175, 175, 175});
  EXPECT_TRUE(many.many());
  // The same do not matter to a connection with few on their way.
  Lose(short_way, {175, 175, 175}, 10);
  EXPECT_FALSE(short_way.many());
}

TEST(LossesTest, ABurstOfThemIsNotMany) {
  Losses losses;
  Lose(losses, {1'000'000, 0, 1'000'000, 1'000'000, 0});
  EXPECT_FALSE(losses.many());
}

TEST(LossesTest, OfLittleTellNothing) {
  Losses losses;
  for (uint64_t sent = 0; sent < 3 * kStretch; sent += 1 << 20) {
    EXPECT_FALSE(losses.Update(Lossy(sent, sent / 10, 100))) << sent;
  }
  EXPECT_TRUE(losses.Update(Lossy(3 * kStretch, 3 * kStretch / 10, 100)));
}

TEST(LossesTest, ManyStay) {
  Losses losses;
  Lose(losses, {1000, 1000, 1000, 0, 0, 0});
  EXPECT_TRUE(losses.many());
}

constexpr absl::Duration kNow = absl::Seconds(100);
constexpr double kRate = 100e6;

TcpState At(absl::Duration least_rtt, absl::Duration rtt) {
  return {.least_rtt = least_rtt,
          .rtt = rtt,
          .acknowledged = 1 << 20,
          .bytes_per_second = kRate};
}

TEST(FlightLimitTest, StartsWithLittleAndFollowsTheRate) {
  FlightLimit limit(kFarRtt);
  EXPECT_EQ(limit.bytes(), kLeastInFlightBytes);
  limit.Update(At(absl::Milliseconds(1), absl::Milliseconds(1)));
  EXPECT_EQ(limit.bytes(), InFlightBytes(kRate, absl::Milliseconds(1)));
}

// Its least round trip is then one of pings behind its own queue: a limit by it
// would let the queue grow with itself.
TEST(FlightLimitTest, OfANearLinkTheQueueInFrontOfItIsLeftOut) {
  FlightLimit limit(kFarRtt);
  limit.Update(At(absl::Milliseconds(1), absl::Milliseconds(1)));
  TcpState behind_queue = At(absl::Milliseconds(30), absl::Milliseconds(30));
  limit.Update(behind_queue);
  EXPECT_FALSE(limit.is_far());
  EXPECT_EQ(limit.bytes(), InFlightBytes(kRate, kFarRtt));
}

TEST(FlightLimitTest, OfANearLinkIsNotDoubled) {
  FlightLimit limit(kFarRtt);
  const TcpState state = At(absl::Milliseconds(1), absl::Milliseconds(1));
  limit.Update(state);
  EXPECT_FALSE(limit.Double(state, kNow));
}

TEST(FlightLimitTest, OfAFarLinkDoublesUntilAQueueShows) {
  FlightLimit limit(kFarRtt);
  const TcpState idle = At(kRtt, kRtt);
  limit.Update(idle);
  const size_t first = InFlightBytes(kRate, kRtt);
  EXPECT_EQ(limit.bytes(), first);
  EXPECT_TRUE(limit.Double(idle, kNow));
  EXPECT_EQ(limit.bytes(), 2 * first);
  // Round trips have to show what that did.
  EXPECT_FALSE(limit.Double(idle, kNow + absl::Milliseconds(49)));
  limit.Update(idle);
  EXPECT_EQ(limit.bytes(), 2 * first);
  const TcpState queue = At(kRtt, kRtt + absl::Milliseconds(13));
  EXPECT_FALSE(limit.Double(queue, kNow + absl::Milliseconds(51)));
  limit.Update(queue);
  EXPECT_EQ(limit.bytes(), first);
  EXPECT_TRUE(limit.Double(idle, kNow + absl::Milliseconds(51)));
}

TEST(FlightLimitTest, WaitsTwoRoundTripsBetweenDoublings) {
  constexpr absl::Duration kFar = absl::Milliseconds(200);
  FlightLimit limit(kFarRtt);
  const TcpState state = At(kFar, kFar);
  limit.Update(state);
  EXPECT_TRUE(limit.Double(state, kNow));
  EXPECT_FALSE(limit.Double(state, kNow + 2 * kFar - absl::Milliseconds(1)));
  EXPECT_TRUE(limit.Double(state, kNow + 2 * kFar));
}

TEST(FlightLimitTest, AFarLinkWithManyLossesIsLossyUntilItIsNear) {
  FlightLimit limit(kFarRtt);
  Lose(limit, {1000, 1000, 1000});
  EXPECT_TRUE(limit.is_lossy());
  TcpState near = Lossy(4 * kStretch, 3000, 100);
  near.least_rtt = absl::Milliseconds(1);
  limit.Update(near);
  EXPECT_FALSE(limit.is_lossy());
}

TEST(FlightLimitTest, LossesOfANearLinkDoNotCount) {
  FlightLimit limit(kRtt + absl::Milliseconds(1));
  Lose(limit, {100'000, 100'000, 100'000, 100'000});
  EXPECT_FALSE(limit.is_lossy());
  // Nor when it is far, some of these among them.
  TcpState far = Lossy(5 * kStretch, 400'000, 100);
  far.least_rtt = 2 * kRtt;
  limit.Update(far);
  for (int stretch = 1; stretch <= 2; ++stretch) {
    far.sent += kStretch;
    far.acknowledged += kStretch;
    far.sent_again += 100'000;
    limit.Update(far);
    EXPECT_TRUE(limit.is_far());
    EXPECT_FALSE(limit.is_lossy()) << stretch;
  }
  far.sent += kStretch;
  far.sent_again += 100'000;
  limit.Update(far);
  EXPECT_TRUE(limit.is_lossy());
}

}  // namespace
}  // namespace pactrain::agent
