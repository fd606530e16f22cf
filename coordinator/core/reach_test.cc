#include "coordinator/core/reach.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

std::vector<std::string> AgentsOf(const std::vector<Unreached::Blame>& blamed) {
  std::vector<std::string> agents;
  for (const Unreached::Blame& blame : blamed) agents.push_back(blame.agent);
  return agents;
}

// Agents "old..." were in the job before.
bool IsOld(const std::string& agent) { return agent.starts_with("old"); }

TEST(Unreached, OfAnOldAgentAndANewcomerTheNewcomerIsToBlame) {
  for (const bool newcomer_says : {false, true}) {
    Unreached unreached;
    const std::vector<Unreached::Blame> sure =
        newcomer_says ? unreached.Note("new", {"old"}, "why", IsOld)
                      : unreached.Note("old", {"new"}, "why", IsOld);
    EXPECT_THAT(AgentsOf(sure), ElementsAre("new"));
    EXPECT_EQ(sure[0].why, "why");
    EXPECT_THAT(unreached.Settle(), IsEmpty());
  }
}

TEST(Unreached, NobodyIsBlamedTwice) {
  Unreached unreached;
  EXPECT_THAT(unreached.Note("old-1", {"new"}, "why", IsOld), SizeIs(1));
  EXPECT_THAT(unreached.Note("old-2", {"new"}, "why", IsOld), IsEmpty());
  EXPECT_THAT(unreached.Note("new", {"old-1", "old-2"}, "why", IsOld),
              IsEmpty());
}

TEST(Unreached, TwoOldAgentsAreNotToBlame) {
  Unreached unreached;
  EXPECT_THAT(unreached.Note("old-1", {"old-2"}, "why", IsOld), IsEmpty());
  EXPECT_THAT(unreached.Settle(), IsEmpty());
}

TEST(Unreached, OfTwoNewcomersBothAreToBlameOnceAllHaveSpoken) {
  Unreached unreached;
  EXPECT_THAT(unreached.Note("new-1", {"new-2"}, "why", IsOld), IsEmpty());
  EXPECT_THAT(AgentsOf(unreached.Settle()), ElementsAre("new-1", "new-2"));
  EXPECT_THAT(unreached.Settle(), IsEmpty());
}

TEST(Unreached, ANewcomerBesideOneThatIsToBlameForSureIsNot) {
  Unreached unreached;
  EXPECT_THAT(unreached.Note("good", {"bad"}, "why", IsOld), IsEmpty());
  EXPECT_THAT(AgentsOf(unreached.Note("old", {"bad"}, "why", IsOld)),
              ElementsAre("bad"));
  EXPECT_THAT(unreached.Settle(), IsEmpty());
}

}  // namespace
}  // namespace pactrain::coordinator
