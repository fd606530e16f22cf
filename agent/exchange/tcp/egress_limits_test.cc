#include "agent/exchange/tcp/egress_limits.h"

#include "base/status_matchers.h"

namespace pactrain::agent {
namespace {

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
