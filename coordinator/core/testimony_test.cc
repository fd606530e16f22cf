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
using ::testing::HasSubstr;
using ::testing::Optional;

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
