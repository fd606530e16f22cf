// Who says what the other agents of its generation contradict.
#include "coordinator/core/testimony.h"

#include <optional>
#include <string>
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

// Members that lie of their own seats: the proof is good, and the state is not.
class LyingMemberTest : public RegroupTest {
 protected:
  // Agents a (ranks 0, 1), b (2) and c (3), each of a site.
  void StartThree() {
    t_.on_shrink = OnShrink::kContinue;
    t_.Connect("a", "x");
    t_.Connect("b", "y");
    t_.Connect("c", "z");
    for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4);
    t_.Join("b", 2, 4);
    t_.Join("c", 3, 4);
    t_.Clear();
  }
  // Its generation has ended there; its ranks come back after `next` steps.
  void ComeBack(const std::string& agent, uint64_t next) {
    for (uint32_t rank : RanksOf(agent)) {
      t_.Leave(agent, rank, "it ended", true);
    }
    for (uint32_t rank : RanksOf(agent)) Return(agent, rank, next);
  }
  // All after `next` steps, with these parameters.
  void ComeBackWith(const std::string& agent, uint64_t parameters,
                    uint64_t next = 7) {
    t_.parameters = {parameters, parameters};
    ComeBack(agent, next);
    t_.parameters = {};
  }
  // Rank 3, after so many steps of gradients, and of all.
  void ComeBackAfter(uint64_t committed, uint64_t steps) {
    t_.Leave("c", 3, "it ended", true);
    t_.lineage = {t_.LineageOf(1), committed};
    t_.resume_step = Newest().base_step + steps;
    t_.Join("c", 3, 4);
  }
  // It has voted for so many steps, and lost a trainer.
  void LastWord(const std::string& agent, uint64_t steps) {
    protocol::StepReport report;
    report.group = t_.group;
    report.generation = 1;
    report.committed_count = steps;
    report.committed_step = Newest().base_step + steps - 1;
    t_.Say(agent, protocol::AgentMessage(protocol::LocalTrainers{
                      t_.group, 0, {}, {}, {}, report}));
  }
  void Die(const std::string& agent, uint64_t steps) {
    LastWord(agent, steps);
    for (uint32_t rank : RanksOf(agent)) {
      t_.Leave(agent, rank, "killed by signal 9");
    }
  }
  std::string Waiting(const std::string& agent) const {
    const auto waiting = t_.Got<protocol::GroupWaiting>(agent);
    return waiting ? waiting->reason : "";
  }
  void Evict(const std::string& agent) {
    t_.Act(t_.state().Expel(agent, std::nullopt, "evicted", t_.now()));
    t_.Advance(absl::Seconds(1));
  }

 private:
  static std::vector<uint32_t> RanksOf(const std::string& agent) {
    if (agent == "a") return {0, 1};
    return {agent == "b" ? 2u : 3u};
  }
};

TEST_F(LyingMemberTest, WhoIsContradictedByMostIsNamedAndOut) {
  StartThree();
  ComeBack("c", 1'000'000'000);
  ComeBack("b", 8);
  ComeBack("a", 7);
  t_.Advance(absl::Seconds(1));
  ASSERT_TRUE(t_.Got<JoinRefused>("c"));
  EXPECT_THAT(
      t_.Got<JoinRefused>("c")->reason,
      AllOf(HasSubstr("rank 3 (agent 'c', site 'z') claims a state of"),
            HasSubstr("after 1000000000 steps, of a seat in generation 1, and "
                      "by the word of agent 'a', 'b' nobody of it can have "
                      "come so far")));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 3u);
  EXPECT_THAT(Newest().donor, Optional(2u));
  EXPECT_EQ(Newest().lineage.committed, 8u);
}

TEST_F(LyingMemberTest, OneWordAgainstAnotherIsSettledByTheOperator) {
  Start(OnShrink::kContinue);
  EndAt("b", {2, 3}, 900);
  EndAt("a", {0, 1}, 7);
  t_.Pass(3600, {"a", "b"});
  EXPECT_EQ(Newest().number, 1u);
  for (const char* agent : {"a", "b"}) {
    EXPECT_FALSE(t_.Got<JoinRefused>(agent));
    EXPECT_THAT(Waiting(agent),
                AllOf(HasSubstr("rank 2 (agent 'b', site 'y') claims"),
                      HasSubstr("by the word of agent 'a' nobody"),
                      HasSubstr("pactrain-admin evict AGENT")));
  }
  Evict("b");
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 2u);
  EXPECT_EQ(Newest().lineage.committed, 7u);
}

// It may be the one with less that lies.
TEST_F(LyingMemberTest, WhoSaysTooLittleMakesNobodyLoseHisState) {
  for (const bool evicted : {false, true}) {
    t_ = TestCluster();
    Start(OnShrink::kContinue);
    EndAt("a", {0, 1}, 900);
    EndAt("b", {2, 3}, 7);
    t_.Pass(60, {"a", "b"});
    EXPECT_EQ(Newest().number, 1u);
    EXPECT_FALSE(t_.Got<JoinRefused>("a"));
    if (!evicted) continue;
    Evict("b");
    EXPECT_EQ(Newest().number, 2u);
    EXPECT_EQ(Newest().lineage.committed, 900u);
  }
}

TEST_F(LyingMemberTest, WhoSaysTooLittleAloneStopsNobody) {
  StartThree();
  ComeBack("c", 7);
  ComeBack("b", 900);
  ComeBack("a", 900);
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().lineage.committed, 900u);
  EXPECT_EQ(Newest().needs_state.size(), 1u);
}

TEST_F(LyingMemberTest, TheLastWordOfThoseWhoDiedBoundsWhoIsLeft) {
  StartThree();
  Die("a", 7);
  Die("b", 8);
  ComeBack("c", 1000);
  t_.Advance(absl::Seconds(1));
  ASSERT_TRUE(t_.Got<JoinRefused>("c"));
  EXPECT_EQ(Newest().number, 1u);
}

TEST_F(LyingMemberTest, WhatTheyVotedForMayHaveBeenCommitted) {
  StartThree();
  Die("a", 8);
  Die("b", 7);
  ComeBackAfter(7, 7);
  EXPECT_FALSE(t_.Got<JoinRefused>("c"));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_THAT(Newest().donor, Optional(0u));
}

// Equal numbers of steps of gradients, and more of others.
TEST_F(LyingMemberTest, ALaterStepThanAnybodyVotedForIsNoneEither) {
  StartThree();
  Die("a", 7);
  Die("b", 7);
  ComeBackAfter(7, 8);
  t_.Advance(absl::Seconds(1));
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
}

TEST_F(LyingMemberTest, WhoNeverGotTheStateBoundsThoseWhoTookPart) {
  Start(OnShrink::kContinue);
  t_.Leave("b", 3, "rank 3 is late", true, {}, /*straggled=*/true);
  EndAt("a", {0, 1}, 7);
  EndAt("b", {2}, 7);
  ASSERT_EQ(Newest().number, 2u);
  Return("b", 3, 5);
  EndAt("a", {0, 1}, 9);
  EndAt("b", {2}, 9);
  ASSERT_EQ(Newest().number, 3u);
  ASSERT_EQ(Newest().needs_state.size(), 1u);
  EndAt("a", {0, 1}, 900);
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "it ended", true);
  Return("b", 3, 5);
  Return("b", 2, 9);
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_THAT(Waiting("a"), HasSubstr("claims a state"));
}

// It shows the secret of the seat before.
TEST_F(LyingMemberTest, AnOlderSeatProvesNoMoreThanItsTrainerHadThen) {
  StartThree();
  for (const char* agent : {"a", "b", "c"}) ComeBack(agent, 7);
  ASSERT_EQ(Newest().number, 2u);
  protocol::Trainer old = t_.TrainerOf("c", 3);
  t_.Leave("c", 3, "it ended", true);
  old.last_attach_id = {old.attach_id.hi, 77};
  ++old.attach_id.lo;
  old.lineage.committed = 900;
  old.last_generation = 1;
  t_.Say("c", protocol::TrainerJoined{t_.group, old, 0, /*proven=*/true});
  ComeBack("b", 9);
  ComeBack("a", 9);
  t_.Advance(absl::Seconds(1));
  EXPECT_THAT(t_.Got<JoinRefused>("c")->reason,
              HasSubstr("generation 2, which it waited for, began after 7"));
  EXPECT_EQ(Newest().lineage.committed, 9u);
}

// They do not say of which generation their seat was.
TEST_F(LyingMemberTest, TrainersAtAgentsOfTheReleaseBeforeAreNoLiars) {
  t_.proves = false;
  StartThree();
  for (const char* agent : {"a", "b", "c"}) ComeBack(agent, 7);
  ASSERT_EQ(Newest().number, 2u);
  t_.Clear();
  protocol::Trainer back = t_.TrainerOf("c", 3);
  t_.Leave("c", 3, "it ended", true);
  back.last_attach_id = back.attach_id;
  ++back.attach_id.lo;
  back.lineage.committed = 900;
  back.last_generation = 0;
  t_.Say("c", protocol::TrainerJoined{t_.group, back, 0, /*proven=*/false});
  ComeBack("b", 900);
  ComeBack("a", 900);
  EXPECT_FALSE(t_.Got<JoinRefused>("c"));
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().world_size, 4u);
}

TEST_F(LyingMemberTest, SeatsAreComparedAlsoByACoordinatorThatWasAway) {
  StartThree();
  t_.RestartCoordinator();
  t_.Connect("a", "x", /*same_process=*/true);
  t_.Connect("b", "y", /*same_process=*/true);
  t_.Connect("c", "z", /*same_process=*/true);
  ComeBack("c", 9000);
  ComeBack("b", 4000);
  ComeBack("a", 4000);
  t_.Advance(absl::Seconds(1));
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
  EXPECT_EQ(Newest().lineage.committed, 4000u);
}

// Nobody is left who could say otherwise: it may have come so far while the
// coordinator was away.
TEST_F(LyingMemberTest, ASoleSurvivorIsBelieved) {
  StartThree();
  t_.RestartCoordinator();
  t_.Connect("c", "z", /*same_process=*/true);
  ComeBack("c", 9000);
  t_.Pass(15, {"c"});
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().lineage.committed, 9000u);
}

TEST_F(LyingMemberTest, OtherParametersThanMostHoldAreNamedAndOut) {
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
                      "hold other parameters after the same steps: agent 'a', "
                      "'c' "),
            HasSubstr("Nothing of it was taken")));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 3u);
  EXPECT_TRUE(Newest().needs_state.empty());
}

// The two that come first are no majority of those who are to come.
TEST_F(LyingMemberTest, ParametersAreComparedWhenAllAreThere) {
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

TEST_F(LyingMemberTest, OneDigestAgainstAnotherIsSettledByTheOperator) {
  Start(OnShrink::kContinue);
  ComeBackWith("a", 5);
  t_.parameters = {6, 6};
  EndAt("b", {2, 3}, 7);
  t_.Connect("d", "z");
  t_.parameters = {};
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

TEST_F(LyingMemberTest, WhoRestartsTheFaultyRanksAsNewcomersGoesOn) {
  Start(OnShrink::kContinue);
  ComeBackWith("a", 5);
  t_.parameters = {6, 6};
  EndAt("b", {2, 3}, 7);
  t_.parameters = {};
  t_.Advance(absl::Seconds(1));
  ASSERT_EQ(Newest().number, 1u);
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "killed by signal 15");
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_THAT(Newest().donor, Optional(0u));
}

// An agent speaks for its ranks, but not with two tongues.
TEST_F(LyingMemberTest, OneRankOfAnAgentMayBeTheFaultyOne) {
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

TEST_F(LyingMemberTest, RanksOfOneAgentCountWhereItIsAmongThemselves) {
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
TEST_F(LyingMemberTest, OfThreeThatAllDifferNobodyIsOut) {
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
TEST_F(LyingMemberTest, WhoIsBehindIsNotJudged) {
  StartThree();
  ComeBackWith("a", 5, 8);
  ComeBackWith("b", 6, 7);
  ComeBackWith("c", 7, 7);
  t_.Advance(absl::Seconds(1));
  EXPECT_FALSE(t_.Got<JoinRefused>("b"));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 4u);
}

// A number more, without a step of gradients: that would be a broadcast.
TEST_F(LyingMemberTest, AnotherNumberHidesNoOtherParameters) {
  StartThree();
  ComeBackWith("a", 5);
  ComeBackWith("b", 5);
  t_.parameters = {6, 6};
  ComeBackAfter(7, 8);
  t_.Advance(absl::Seconds(1));
  EXPECT_THAT(t_.Got<JoinRefused>("c")->reason,
              HasSubstr("hold other parameters after the same steps"));
  EXPECT_EQ(Newest().world_size, 3u);
}

TEST_F(LyingMemberTest, NorAnotherCountOfGradientStepsOfTheSameNumber) {
  StartThree();
  ComeBackWith("a", 5);
  ComeBackWith("b", 5);
  t_.parameters = {6, 6};
  ComeBackAfter(8, 7);
  t_.Advance(absl::Seconds(1));
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
  EXPECT_EQ(Newest().lineage.committed, 7u);
}

// Its first step is the broadcast of rank 0's parameters.
TEST_F(LyingMemberTest, BeforeTheFirstGradientStepBroadcastsMayBeMissing) {
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

TEST_F(LyingMemberTest, AWordThatIsSettledHidesNoOpenDispute) {
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

TEST_F(LyingMemberTest, OtherParametersAfterOtherStepsAreNoLie) {
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
TEST_F(LyingMemberTest, WhoSaysNothingOfItsParametersGivesThemToNobody) {
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

// Who left in order takes its state along, and no more than it had.
TEST_F(LyingMemberTest, WhoLeftEndsNoLineageByAWordThatOthersContradict) {
  StartThree();
  for (const char* agent : {"a", "b"}) {
    LastWord(agent, 7);
    ComeBack(agent, 7);
  }
  LastWord("c", 1000);
  t_.Leave("c", 3, "detached");
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_TRUE(Newest().donor);
  EXPECT_EQ(Newest().lineage.committed, 7u);
}

}  // namespace
}  // namespace pactrain::coordinator
