#include "agent/exchange/tcp/egress_limits.h"

#include "base/status_matchers.h"

namespace pactrain::agent {
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

TEST(EgressLimits, ParsesUnits) {
  ASSERT_OK_AND_ASSIGN(const EgressLimit limit, ParseEgressLimit("eu=100mbit"));
  EXPECT_EQ(limit.site, "eu");
  EXPECT_EQ(limit.bytes_per_second, 12.5e6);
  EXPECT_EQ(ParseEgressLimit("*=1.5gbit")->bytes_per_second, 187.5e6);
  EXPECT_EQ(ParseEgressLimit("*=1000kbit")->bytes_per_second, 125e3);
}

TEST(EgressLimits, RefusesWhatIsNoLimitAndSaysHowToWriteOne) {
  for (const char* text :
       {"", "eu", "=1mbit", "eu=", "eu=100", "eu=xmbit", "eu=-1mbit",
        "eu=999kbit", "eu=0mbit", "eu=nanmbit", "EU=1mbit"}) {
    EXPECT_THAT(ParseEgressLimit(text),
                base::StatusIs(absl::StatusCode::kInvalidArgument,
                               ::testing::HasSubstr("write SITE=RATE")))
        << text;
  }
}

TEST(EgressLimits, SitesHaveBucketsOfTheirOwn) {
  ASSERT_OK_AND_ASSIGN(EgressLimits limits,
                       EgressLimits::Create({{"*", 1e6}, {"eu", 2e6}}, "here"));
  EXPECT_EQ(limits.ForSite("eu")->bytes_per_second(), 2e6);
  EXPECT_EQ(limits.ForSite("us")->bytes_per_second(), 1e6);
  EXPECT_NE(limits.ForSite("us"), limits.ForSite("asia"));
  EXPECT_EQ(limits.ForSite("us"), limits.ForSite("us"));
}

TEST(EgressLimits, NoLimitWhereNoneIsGiven) {
  ASSERT_OK_AND_ASSIGN(EgressLimits limits,
                       EgressLimits::Create({{"eu", 2e6}}, "here"));
  EXPECT_EQ(limits.ForSite("us"), nullptr);
}

TEST(EgressLimits, StarLeavesTheOwnSiteAlone) {
  ASSERT_OK_AND_ASSIGN(EgressLimits limits,
                       EgressLimits::Create({{"*", 1e6}}, "here"));
  EXPECT_EQ(limits.ForSite("here"), nullptr);
  ASSERT_OK_AND_ASSIGN(limits, EgressLimits::Create({{"here", 1e6}}, "here"));
  EXPECT_NE(limits.ForSite("here"), nullptr);
}

TEST(EgressLimits, RefusesASiteGivenTwice) {
  EXPECT_THAT(EgressLimits::Create({{"eu", 2e6}, {"eu", 1e6}}, "here"),
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             ::testing::HasSubstr("twice")));
}

}  // namespace
}  // namespace pactrain::agent
