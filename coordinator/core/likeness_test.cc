// Who holds other parameters than others after the same steps.
#include "coordinator/core/likeness.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::JoinRefused;
using protocol::OnShrink;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;

class LikenessTest : public LyingMemberTest {};

TEST_F(LikenessTest, OtherParametersThanMostHoldAreNamedAndOut) {
  StartThree();
  ComeBackWith("a", 5);
  ComeBackWith("b", 6);
  ComeBackWith("c", 5);
  t_.Advance(absl::Seconds(1));
  ASSERT_TRUE(t_.Got<JoinRefused>("b"));
  EXPECT_THAT(
      t_.Got<JoinRefused>("b")->reason,
      AllOf(HasSubstr("rank 2 (agent 'b', site 'y') claims a state of"),
            HasSubstr("after 7 steps, of a seat in generation 1, and others "
                      "hold other parameters after the same steps: it has "
                      "00000000 after 7; agent 'a', 'c' 00000000"),
            HasSubstr("Nothing of it was taken")));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 3u);
  EXPECT_TRUE(Newest().needs_state.empty());
}

// The two that come first are no majority of those who are to come.
TEST_F(LikenessTest, ParametersAreComparedWhenAllAreThere) {
  StartThree();
  ComeBackWith("b", 6);
  ComeBackWith("c", 5);
  t_.Advance(absl::Seconds(1));
  EXPECT_THAT(Waiting("b"), Not(HasSubstr("parameters")));
  ComeBackWith("a", 5);
  t_.Advance(absl::Seconds(1));
  EXPECT_TRUE(t_.Got<JoinRefused>("b"));
  EXPECT_FALSE(t_.Got<JoinRefused>("a"));
  EXPECT_FALSE(t_.Got<JoinRefused>("c"));
}

TEST_F(LikenessTest, OneDigestAgainstAnotherIsSettledByTheOperator) {
  Differ();
  t_.Connect("d", "z");
  t_.Join("d", 0, 1, "newcomers");
  t_.Pass(3600, {"a", "b", "d"});
  EXPECT_EQ(Newest().number, 1u);
  for (const char* agent : {"a", "b", "d"}) {
    EXPECT_FALSE(t_.Got<JoinRefused>(agent));
    EXPECT_THAT(Waiting(agent),
                AllOf(HasSubstr("rank 0 (agent 'a', site 'x') claims"),
                      HasSubstr("other parameters after the same steps: it "
                                "has 00000000 after 7; agent 'b' 00000000"),
                      HasSubstr("pactrain-admin evict AGENT")));
  }
  Evict("b");
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_THAT(Newest().donor, Optional(0u));
}

// Trainers wait for some minutes only; who waits longer is not right by that.
TEST_F(LikenessTest, WhoOutwaitsTheOthersIsNotBelievedForThat) {
  for (const bool again : {false, true}) {
    t_ = TestCluster();
    Differ();
    for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "closed its connection");
    if (again) {  // Its launcher starts it again, as a newcomer.
      for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4);
    }
    t_.Pass(60, {"a", "b"});
    EXPECT_EQ(Newest().number, 1u);
    EXPECT_THAT(Waiting("b"), HasSubstr("agent 'a' 00000000"));
    Evict("a");
    EXPECT_EQ(Newest().number, 2u);
    EXPECT_THAT(Newest().donor, Optional(0u));
    EXPECT_EQ(Newest().members[0].agent, "b");
  }
}

TEST_F(LikenessTest, ADisputeIsOverWithTheStateThatItIsAbout) {
  Differ();
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "closed its connection");
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "closed its connection");
  // All from a checkpoint.
  for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4);
  for (uint32_t rank : {2, 3}) t_.Join("b", rank, 4);
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_FALSE(Newest().donor);
}

TEST_F(LikenessTest, ALaunchThatReplacesTheJobWaitsForNoDispute) {
  Differ();
  t_.replace = true;
  for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4, "run-2");
  for (uint32_t rank : {2, 3}) t_.Join("b", rank, 4, "run-2");
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_FALSE(Newest().donor);
}

// An agent speaks for its ranks, but not with two tongues.
TEST_F(LikenessTest, OneRankOfAnAgentMayBeTheFaultyOne) {
  StartThree();
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "it ended", true);
  t_.parameters = {6, 6};
  Return("a", 0, 7);
  t_.parameters = {5, 5};
  Return("a", 1, 7);
  ComeBackWith("b", 5);
  ComeBackWith("c", 5);
  t_.Advance(absl::Seconds(1));
  EXPECT_THAT(t_.Got<JoinRefused>("a")->reason,
              HasSubstr("rank 0 (agent 'a', site 'x') claims"));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 3u);
}

TEST_F(LikenessTest, RanksOfOneAgentCountWhereItIsAmongThemselves) {
  t_.on_shrink = OnShrink::kContinue;
  t_.Connect("a", "x");
  for (uint32_t rank : {0, 1, 2, 3}) t_.Join("a", rank, 4);
  for (uint32_t rank : {0, 1, 2, 3}) t_.Leave("a", rank, "it ended", true);
  for (uint32_t rank : {0, 1, 2, 3}) {
    t_.parameters = {rank == 2 ? 6u : 5u, 5};
    Return("a", rank, 7);
  }
  t_.Advance(absl::Seconds(1));
  EXPECT_THAT(t_.Got<JoinRefused>("a")->reason, HasSubstr("rank 2 (agent"));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 3u);
}

// Each has two against itself, and none of these has more than one.
TEST_F(LikenessTest, OfThreeThatAllDifferNobodyIsOut) {
  StartThree();
  ComeBackWith("a", 5);
  ComeBackWith("b", 6);
  ComeBackWith("c", 7);
  t_.Pass(60, {"a", "b", "c"});
  for (const char* agent : {"a", "b", "c"}) {
    EXPECT_FALSE(t_.Got<JoinRefused>(agent));
    EXPECT_THAT(Waiting(agent), HasSubstr("pactrain-admin evict AGENT"));
  }
  EXPECT_EQ(Newest().number, 1u);
}

// Who is behind takes another state, whatever its own was.
TEST_F(LikenessTest, WhoIsBehindIsNotJudged) {
  StartThree();
  ComeBackWith("a", 5, 8);
  ComeBackWith("b", 6, 7);
  ComeBackWith("c", 7, 7);
  t_.Advance(absl::Seconds(1));
  EXPECT_FALSE(t_.Got<JoinRefused>("b"));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 4u);
}

// A number more without a step of gradients would be a broadcast; and no other
// count of these leads to the same number.
TEST_F(LikenessTest, AnotherNumberOrCountHidesNoOtherParameters) {
  const std::pair<uint64_t, uint64_t> claims[] = {{7, 8}, {8, 7}};
  for (const auto& [committed, steps] : claims) {
    t_ = TestCluster();
    StartThree();
    ComeBackWith("a", 5);
    ComeBackWith("b", 5);
    t_.parameters = {6, 6};
    ComeBackAfter(committed, steps);
    t_.Advance(absl::Seconds(1));
    EXPECT_THAT(t_.Got<JoinRefused>("c")->reason,
                HasSubstr("hold other parameters after the same steps"));
    EXPECT_EQ(Newest().world_size, 3u);
    EXPECT_EQ(Newest().lineage.committed, 7u);
  }
}

// Its first step is the broadcast of rank 0's parameters.
TEST_F(LikenessTest, BeforeTheFirstGradientStepBroadcastsMayBeMissing) {
  StartThree();
  const uint64_t base = Newest().base_step;
  for (const char* agent : {"a", "b"}) {
    t_.parameters = {agent[0] == 'a' ? 5u : 6u, 5};
    const std::vector<uint32_t> ranks =
        agent[0] == 'a' ? std::vector<uint32_t>{0, 1} : std::vector{2u};
    for (uint32_t rank : ranks) t_.Leave(agent, rank, "it ended", true);
    for (uint32_t rank : ranks) {
      t_.lineage = {t_.LineageOf(1), 0};
      t_.resume_step = base + (agent[0] == 'a' ? 1 : 0);
      t_.Join(agent, rank, 4);
    }
  }
  t_.parameters = {5, 5};
  ComeBackAfter(0, 1);
  t_.Advance(absl::Seconds(1));
  EXPECT_FALSE(t_.Got<JoinRefused>("b"));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_THAT(Newest().needs_state, ElementsAre(2u));
}

TEST_F(LikenessTest, AWordThatIsSettledHidesNoOpenDispute) {
  t_.on_shrink = OnShrink::kContinue;
  for (const char* agent : {"q", "a", "b"}) t_.Connect(agent, agent);
  t_.Join("q", 0, 4);
  t_.Join("a", 1, 4);
  t_.Join("b", 2, 4);
  t_.Join("b", 3, 4);
  t_.Leave("q", 0, "it ended", true);
  Return("q", 0, 2);
  for (uint32_t rank : {1, 2, 3}) {
    t_.Leave(rank == 1 ? "a" : "b", rank, "it ended", true);
  }
  for (uint32_t rank : {1, 2, 3}) {
    t_.parameters = {rank == 1 ? 5u : 6u, 5};
    Return(rank == 1 ? "a" : "b", rank, 7);
  }
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(Waiting("b"), HasSubstr("hold other parameters"));
}

TEST_F(LikenessTest, OtherParametersAfterOtherStepsAreNoLie) {
  StartThree();
  ComeBackWith("a", 5, 7);
  ComeBackWith("b", 6, 8);
  ComeBackWith("c", 6, 8);
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 4u);
  EXPECT_EQ(Newest().needs_state.size(), 2u);
}

// An agent of the release before, or one that hides what it holds.
TEST_F(LikenessTest, WhoSaysNothingOfItsParametersGivesThemToNobody) {
  StartThree();
  ComeBack("a", 7);
  ComeBackWith("b", 5);
  ComeBackWith("c", 5);
  t_.Advance(absl::Seconds(1));
  EXPECT_FALSE(t_.Got<JoinRefused>("a"));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 4u);
  EXPECT_THAT(Newest().donor, Optional(2u));
}

}  // namespace
}  // namespace pactrain::coordinator
