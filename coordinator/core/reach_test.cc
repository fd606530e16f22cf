#include "coordinator/core/reach.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

Candidate At(uint32_t rank, const std::string& agent,
             const std::string& address) {
  Candidate candidate;
  candidate.trainer.rank = rank;
  candidate.trainer.world_size = 3;
  candidate.trainer.attach_id = {1, rank + 1};
  candidate.trainer.launch = "run-1";
  candidate.agent = agent;
  candidate.site = "site-" + agent;
  candidate.data_address = address;
  return candidate;
}

TEST(WhyNeitherDials, OneAddressOfTwoIsEnough) {
  const Candidate a = At(0, "a", "10.0.0.1:7072"), b = At(1, "b", "none");
  EXPECT_FALSE(WhyNeitherDials(a, b).has_value());
  EXPECT_FALSE(WhyNeitherDials(b, a).has_value());
  EXPECT_FALSE(WhyNeitherDials(a, a).has_value());
}

TEST(WhyNeitherDials, OneAgentNeedNotDialItself) {
  EXPECT_FALSE(WhyNeitherDials(At(0, "a", "none"), At(1, "a", "none")));
}

TEST(WhyNeitherDials, TwoThatNobodyCanDialAreNamed) {
  const auto why = WhyNeitherDials(At(0, "a", "none"), At(1, "b", "none"));
  ASSERT_TRUE(why.has_value());
  EXPECT_THAT(*why, HasSubstr("agents 'a' (site 'site-a') and 'b' (site "
                              "'site-b') both have --advertise-address none"));
}

TEST(Membership, RefusesALaunchWithTwoAgentsThatNobodyCanDial) {
  Membership membership(absl::Seconds(60));
  const absl::Duration now = absl::Seconds(1);
  EXPECT_THAT(membership.Join(At(0, "a", "10.0.0.1:1"), now), SizeIs(0));
  EXPECT_THAT(membership.Join(At(1, "b", "none"), now), SizeIs(0));
  const auto refused = membership.Join(At(2, "c", "none"), now);
  ASSERT_THAT(refused, SizeIs(3));
  EXPECT_THAT(refused[0].reason, HasSubstr("'b' (site 'site-b') and 'c'"));
}

}  // namespace
}  // namespace pactrain::coordinator
