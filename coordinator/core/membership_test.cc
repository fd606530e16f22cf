#include "coordinator/core/membership.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Candidate Make(uint32_t rank, uint32_t world, const std::string& agent,
               const std::string& launch = "run-1", uint64_t attach = 0) {
  Candidate c;
  c.trainer.rank = rank;
  c.trainer.world_size = world;
  c.trainer.attach_id = {1, attach == 0 ? rank + 1 : attach};
  c.trainer.launch = launch;
  c.trainer.model_digest = {5, 5};
  c.trainer.model_summary = "2 parameters";
  c.agent = agent;
  c.site = "site-" + agent;
  return c;
}

class MembershipTest : public ::testing::Test {
 protected:
  std::vector<Membership::Refusal> Join(const Candidate& c) {
    return membership_.Join(c, now_);
  }
  absl::Duration now_ = absl::Seconds(1);
  Membership membership_{absl::Seconds(60)};
};

TEST_F(MembershipTest, IsCompleteWhenAllRanksAreThere) {
  EXPECT_THAT(Join(Make(0, 3, "a")), IsEmpty());
  EXPECT_THAT(Join(Make(2, 3, "b")), IsEmpty());
  EXPECT_EQ(membership_.Complete(), nullptr);
  EXPECT_EQ(membership_.WaitingReason(), "waiting for rank 1 of 3");
  EXPECT_THAT(Join(Make(1, 3, "b")), IsEmpty());
  ASSERT_NE(membership_.Complete(), nullptr);
  EXPECT_EQ(membership_.Complete()->by_rank.size(), 3);
}

TEST_F(MembershipTest, RepeatedJoinChangesNothing) {
  Join(Make(0, 2, "a"));
  EXPECT_THAT(Join(Make(0, 2, "a")), IsEmpty());
  EXPECT_EQ(membership_.WaitingReason(), "waiting for rank 1 of 2");
}

TEST_F(MembershipTest, ListsOfSitesThatDifferAreTheReason) {
  Join(Make(0, 4, "a", "a:2,b:2 0123456789abcdef"));
  Join(Make(2, 5, "b", "a:2,b:3 fedcba9876543210"));
  EXPECT_EQ(membership_.WaitingReason(),
            "launch 'a:2,b:2 0123456789abcdef' lacks ranks 1, 2, 3 of 4, "
            "launch 'a:2,b:3 fedcba9876543210' lacks ranks 0, 1, 3, 4 of 5: "
            "they name different sites; set PACTRAIN_SITES to the same value "
            "at all sites");
}

TEST_F(MembershipTest, OneListOfSitesIsNoReason) {
  Join(Make(0, 4, "a", "a:2,b:2 0123456789abcdef"));
  Join(Make(0, 2, "b", "fedcba9876543210"));
  EXPECT_THAT(membership_.WaitingReason(),
              HasSubstr("all trainers of one run must name the same launch"));
}

TEST_F(MembershipTest, ManyMissingRanksAreCounted) {
  Join(Make(0, 1024, "a"));
  EXPECT_EQ(
      membership_.WaitingReason(),
      "waiting for ranks 1, 2, 3, 4, 5, 6, 7, 8, ... (1023 in all) of 1024");
}

TEST_F(MembershipTest, ATakenRankIsRefusedAndTheFirstStays) {
  Join(Make(0, 2, "a"));
  const auto refused = Join(Make(0, 2, "b", "run-1", 99));
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].candidate.agent, "b");
  EXPECT_THAT(refused[0].reason, HasSubstr("agent 'a'"));
  EXPECT_THAT(refused[0].reason, HasSubstr("agent 'b'"));
  EXPECT_THAT(refused[0].reason, HasSubstr("another PACTRAIN_JOB_ID"));
  EXPECT_EQ(membership_.WaitingReason(), "waiting for rank 1 of 2");
}

TEST_F(MembershipTest, AnotherModelRefusesTheWholeLaunchNamingBothSides) {
  Join(Make(0, 3, "a"));
  Candidate other = Make(1, 3, "b");
  other.trainer.model_digest = {6, 6};
  other.trainer.model_summary = "3 parameters";
  const auto refused = Join(other);
  ASSERT_THAT(refused, SizeIs(2));
  for (const auto& refusal : refused) {
    for (const char* part : {"rank 0", "site 'site-a'", "2 parameters",
                             "rank 1", "site 'site-b'", "3 parameters"}) {
      EXPECT_THAT(refusal.reason, HasSubstr(part));
    }
  }
  EXPECT_TRUE(membership_.empty());
}

TEST_F(MembershipTest, LatecomersOfARefusedLaunchAreRefusedForAWhile) {
  Join(Make(0, 3, "a"));
  Join(Make(1, 2, "b"));  // Another world_size.
  EXPECT_THAT(Join(Make(2, 3, "a")), SizeIs(1));
  EXPECT_THAT(Join(Make(0, 3, "a", "run-2")), IsEmpty());
  now_ += absl::Seconds(60);
  EXPECT_THAT(Join(Make(2, 3, "a")), IsEmpty());
}

TEST_F(MembershipTest, TwoLaunchesAreNamedInTheReason) {
  Join(Make(0, 2, "a", "run-a"));
  Join(Make(1, 2, "b", "run-b"));
  EXPECT_EQ(membership_.Complete(), nullptr);
  EXPECT_EQ(
      membership_.WaitingReason(),
      "launch 'run-a' lacks rank 1 of 2, launch 'run-b' lacks rank 0 of 2: all "
      "trainers of one run must name the same launch");
}

TEST_F(MembershipTest, sec_limits_LaunchesThatWait) {
  for (size_t i = 0; i < Membership::kMaxLaunches; ++i) {
    EXPECT_THAT(Join(Make(0, 2, "a", "run-" + std::to_string(i))), IsEmpty());
  }
  EXPECT_THAT(Join(Make(0, 2, "a", "one-more")), SizeIs(1));
}

TEST_F(MembershipTest, sec_limits_TrainersOfAnAgent) {
  for (int i = 0; i < protocol::kMaxTrainersPerAgent; ++i) {
    EXPECT_THAT(Join(Make(i, 1000, "a")), IsEmpty());
  }
  const auto refused = Join(Make(500, 1000, "a"));
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].reason, HasSubstr("64 trainers that one agent"));
  EXPECT_THAT(Join(Make(500, 1000, "b")), IsEmpty());
}

TEST_F(MembershipTest, sec_limits_SitesOfALaunch) {
  for (int i = 0; i < protocol::kMaxSites; ++i) {
    EXPECT_THAT(Join(Make(i, 1000, "agent-" + std::to_string(i))), IsEmpty());
  }
  const auto refused = Join(Make(500, 1000, "one-more"));
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].reason, HasSubstr("one site more than the 32"));
}

TEST_F(MembershipTest, sec_limits_AgentsOfALaunch) {
  const auto join = [&](uint32_t rank) {
    Candidate c = Make(rank, 1000, "agent-" + std::to_string(rank));
    c.site = "site-a";
    return Join(c);
  };
  for (int i = 0; i < protocol::kMaxAgents; ++i) {
    EXPECT_THAT(join(i), IsEmpty());
  }
  const auto refused = join(500);
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].reason, HasSubstr("one agent more than the 64"));
}

TEST_F(MembershipTest, WhoLeavesNoLongerWaits) {
  Join(Make(0, 2, "a"));
  Join(Make(1, 2, "b"));
  EXPECT_FALSE(membership_.Leave({9, 9}));
  EXPECT_TRUE(membership_.Leave({1, 1}));
  EXPECT_EQ(membership_.Complete(), nullptr);
  membership_.DropAgent("b");
  EXPECT_TRUE(membership_.empty());
}

}  // namespace
}  // namespace pactrain::coordinator
