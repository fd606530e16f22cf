// Ranks that come and go: scenarios of whole groups.
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::EndGeneration;
using protocol::Generation;
using protocol::GroupWaiting;
using protocol::JoinRefused;
using protocol::OnShrink;
using protocol::StartGeneration;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

TEST_F(RegroupTest, ContinueGoesOnWithoutTheOneThatDied) {
  Start(OnShrink::kContinue);
  t_.Leave("b", 3, "killed by signal 9");
  EXPECT_TRUE(t_.Got<EndGeneration>("a"));
  EndAt("b", {2}, 7);
  EXPECT_EQ(Newest().number, 1u);  // Ranks 0 and 1 can still come back.
  EndAt("a", {0, 1}, 7);
  ASSERT_TRUE(t_.Got<StartGeneration>("a"));
  const Generation g = t_.Got<StartGeneration>("a")->generation;
  EXPECT_OK(protocol::CheckGeneration(g));
  EXPECT_EQ(g.number, 2u);
  EXPECT_EQ(g.world_size, 3u);
  EXPECT_EQ(g.on_shrink, OnShrink::kContinue);
  EXPECT_THAT(g.donor, Optional(0u));
  EXPECT_THAT(g.needs_state, IsEmpty());
  EXPECT_GE(g.base_step, 7u);
}

TEST_F(RegroupTest, PauseWaitsForOneInItsPlaceAndGivesItTheState) {
  Start(OnShrink::kPause);
  LoseRankThree();
  t_.Pass(60, {"a", "b"});
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(t_.Got<GroupWaiting>("a")->reason,
              HasSubstr("3 ranks are here; generation 1 had 4"));
  t_.Join("b", 3, 4);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 4u);
  EXPECT_THAT(Newest().needs_state, ElementsAre(3));
}

TEST_F(RegroupTest, ATrainerWhoseAgentDiedIsWaitedForALittle) {
  Start(OnShrink::kContinue);
  EndAt("a", {0, 1}, 7);
  t_.Pass(5, {"a"});
  EXPECT_EQ(Newest().number, 1u);
  t_.Connect("b", "y");  // Another process.
  Return("b", 2, 7);
  Return("b", 3, 7);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 4u);
  EXPECT_THAT(Newest().needs_state, IsEmpty());
}

TEST_F(RegroupTest, ContinueStopsWaitingForAnAgentThatStaysAway) {
  Start(OnShrink::kContinue);
  EndAt("a", {0, 1}, 7);
  t_.Pass(14, {"a"});  // 3 s until it is silent, and 10 s from then on.
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 2u);
  // It comes back too late, and meets them in the next one.
  t_.Connect("b", "y");
  Return("b", 2, 7);
  Return("b", 3, 7);
  EndAt("a", {0, 1}, 7);  // They never heard of generation 2.
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_TRUE(Newest().donor);
}

TEST_F(RegroupTest, ANewLaunchEndsTheGenerationAndJoinsTheNext) {
  Start(OnShrink::kPause);
  t_.Connect("c", "z");
  t_.Join("c", 0, 2, "run-2");
  EXPECT_FALSE(t_.Got<EndGeneration>("a"));
  t_.Join("c", 1, 2, "run-2");
  EXPECT_THAT(t_.Got<EndGeneration>("a")->reason,
              HasSubstr("launch 'run-2' joins with 2 ranks"));
  EndAt("a", {0, 1}, 7);
  EXPECT_EQ(Newest().number, 1u);
  EndAt("b", {2, 3}, 8);  // Had the commit of step 7 already.
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 6u);
  EXPECT_THAT(Newest().sites, ElementsAre("x", "y", "z"));
  EXPECT_THAT(Newest().donor, Optional(2u));
  EXPECT_THAT(Newest().needs_state, ElementsAre(0, 1, 4, 5));
  EXPECT_GE(Newest().base_step, 8u);
}

TEST_F(RegroupTest, ItLeavesAgainAndTheOthersGoOn) {
  Start(OnShrink::kPause);
  t_.Leave("b", 2, "detached");
  t_.Leave("b", 3, "detached");
  EndAt("a", {0, 1}, 9);  // Their next step found nobody there.
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 2u);
}

// In an evaluation, say: it does not look at what its agent says.
TEST_F(RegroupTest, RanksBetweenStepsAreWaitedForAndNotDoneWithout) {
  Start(OnShrink::kPause);
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "run-2 joins", true);
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "run-2 joins", true);
  t_.Pass(60, {"a", "b", "c"});
  EXPECT_EQ(Newest().number, 1u);
  for (uint32_t rank : {0, 1}) Return("a", rank, 7);
  for (uint32_t rank : {2, 3}) Return("b", rank, 7);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 5u);
  EXPECT_THAT(Newest().needs_state, ElementsAre(4));
}

TEST_F(RegroupTest, OneThatDiesOrLeavesInsteadOfReturningIsNotWaitedFor) {
  Start(OnShrink::kContinue);
  t_.Leave("b", 3, "killed by signal 9");
  EndAt("a", {0}, 7);
  t_.Leave("a", 1, "rank 3 left", true);
  t_.Leave("b", 2, "rank 3 left", true);
  t_.Leave("a", 1, "killed by signal 9");
  EXPECT_EQ(Newest().number, 1u);
  t_.Leave("b", 2, "detached");
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 1u);
}

TEST_F(RegroupTest, OneThatReturnedAndDiedIsNotWaitedFor) {
  Start(OnShrink::kContinue);
  EndAt("a", {0, 1}, 7);
  EndAt("b", {2}, 7);
  t_.Leave("a", 1, "killed by signal 9");
  t_.Leave("b", 3, "killed by signal 9");
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 2u);
}

// It was between steps when the generation ended; then its agent lost its
// stream, and could not say that it died.
TEST_F(RegroupTest, OneThatDiedUnheardIsNotWaitedFor) {
  Start(OnShrink::kContinue);
  t_.Leave("b", 3, "killed by signal 9");
  t_.Leave("b", 2, "rank 3 left", true);
  EndAt("a", {0, 1}, 7);
  t_.Disconnect("b");
  t_.Connect("b", "y", /*same_process=*/true);
  t_.Pass(5, {"a", "b"});
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 2u);
}

TEST_F(RegroupTest, OneThatLivesIsWaitedForAlsoWhenItsAgentLostItsStream) {
  Start(OnShrink::kContinue);
  t_.Leave("b", 3, "killed by signal 9");
  t_.Leave("b", 2, "rank 3 left", true);
  EndAt("a", {0, 1}, 7);
  t_.Disconnect("b");
  t_.Connect("b", "y", /*same_process=*/true);
  t_.Leave("b", 2, "rank 3 left", true);  // Said again.
  t_.Pass(60, {"a", "b"});
  EXPECT_EQ(Newest().number, 1u);
  Return("b", 2, 7);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 3u);
}

TEST_F(RegroupTest, ARestartedRankOfALaunchJoinsThoseThatStayed) {
  Start(OnShrink::kContinue);
  LoseRankThree();
  EXPECT_EQ(Newest().world_size, 3u);
  t_.Clear();
  t_.Join("b", 3, 4);
  EXPECT_TRUE(t_.Got<EndGeneration>("a"));
  for (uint32_t rank : {0, 1}) Return("a", rank, 900, 2);
  Return("b", 2, 900, 2);
  EXPECT_EQ(Newest().world_size, 4u);
  EXPECT_THAT(Newest().needs_state, ElementsAre(3));
}

TEST_F(RegroupTest, ASecondOfARankThatTrainsWaits) {
  Start(OnShrink::kPause);
  t_.Connect("c", "y");
  t_.Join("c", 3, 4);
  EXPECT_FALSE(t_.Got<EndGeneration>("a"));
}

TEST_F(RegroupTest, AnotherModelIsRefusedAndDisturbsNobody) {
  Start(OnShrink::kPause);
  t_.Connect("c", "z");
  t_.model = 8;
  t_.Join("c", 0, 1, "run-2");
  EXPECT_THAT(t_.Got<JoinRefused>("c")->reason, HasSubstr("models differ"));
  EXPECT_FALSE(t_.Got<EndGeneration>("a"));
}

TEST_F(RegroupTest, AJobWhoseRanksStayIsNotJoined) {
  Start(OnShrink::kAbort);
  t_.Connect("c", "z");
  t_.on_shrink = OnShrink::kPause;
  t_.Join("c", 0, 1, "run-2");
  EXPECT_FALSE(t_.Got<EndGeneration>("a"));
  EXPECT_THAT(t_.Got<GroupWaiting>("c")->reason, HasSubstr("still runs"));
}

// Its members commit steps until they hear of the end.
TEST_F(RegroupTest, AReportIsNotTheLastOneBeforeAnAgentSaysSo) {
  Start(OnShrink::kContinue);
  t_.Report("a", 1, 5);
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  const auto& group = t_.journal().groups.at(t_.group);
  ASSERT_TRUE(group.ended);
  EXPECT_GE(group.reserved_step, group.generation.base_step + kReserveSteps);
}

TEST_F(RegroupTest, WhatIsReportedOfAnEarlierGenerationDoesNotCount) {
  Start(OnShrink::kContinue);
  LoseRankThree();
  ASSERT_EQ(Newest().number, 2u);
  t_.Clear();
  protocol::StepReport report;
  report.group = t_.group;
  report.generation = 1;
  report.committed_count = 100'000;
  report.committed_step = 100'000;
  t_.Say("a", report);
  EXPECT_THAT(t_.records(), IsEmpty());
}

TEST_F(RegroupTest, OnShrinkMustBeEqual) {
  Start(OnShrink::kPause);
  t_.Connect("c", "z");
  t_.on_shrink = OnShrink::kContinue;
  t_.Join("c", 0, 1, "run-2");
  EXPECT_THAT(t_.Got<JoinRefused>("c")->reason, HasSubstr("on_shrink differs"));
  // Both launches have a rank 0.
  EXPECT_THAT(t_.Got<JoinRefused>("c")->reason,
              HasSubstr(", newcomer rank 0 (agent 'c'"));
}

TEST_F(RegroupTest, ANewcomerIsToldWhenItJoins) {
  Start(OnShrink::kPause);
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  ASSERT_TRUE(t_.Got<EndGeneration>("a"));
  EXPECT_EQ(t_.Got<GroupWaiting>("c")->reason,
            "generation 1 is over; joining its ranks, which come with their "
            "next step");
}

TEST_F(RegroupTest, AnotherListOfSitesThanTheJobsIsNamed) {
  t_.on_shrink = OnShrink::kPause;
  for (const char* name : {"a", "b", "c"}) t_.Connect(name, name);
  const std::string sites = "a:1,b:1 0123456789abcdef";
  t_.Join("a", 0, 2, sites);
  t_.Join("b", 1, 2, sites);
  t_.Join("c", 2, 3, "a:1,b:1,c:1 fedcba9876543210");
  EXPECT_THAT(
      t_.Got<GroupWaiting>("c")->reason,
      HasSubstr("waiting for ranks 0, 1 of 3 (site a, b); launch 'a:1,b:1,c:1 "
                "fedcba9876543210' names other sites than launch '" +
                sites + "'"));
  t_.Clear();
  t_.Leave("c", 2, "killed by signal 9");
  t_.Join("c", 0, 2, "fedcba9876543210");  // As without PACTRAIN_SITES.
  EXPECT_EQ(t_.Got<GroupWaiting>("c")->reason, "waiting for rank 1 of 2");
}

TEST_F(RegroupTest, ALaunchFromACheckpointStartsAnewWhenNobodyIsLeft) {
  Start(OnShrink::kPause);
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "killed by signal 9");
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "killed by signal 9");
  t_.resume_step = 5000;
  t_.Join("a", 0, 4, "run-2");
  t_.Join("a", 1, 4, "run-2");
  t_.Join("b", 2, 4, "run-2");
  t_.Join("b", 3, 4, "run-2");
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_FALSE(Newest().donor);
  EXPECT_EQ(Newest().base_step, 5000u);
}

TEST_F(RegroupTest, AStateThatNobodyElseHasIsNotGoneBackTo) {
  Start(OnShrink::kContinue);
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "killed by signal 9");
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "killed by signal 9");
  // Of another history, whose generation 1 it began with; a later one is not
  // refused (later_state_test.cc).
  t_.lineage = {{99, 1}, 3};
  t_.resume_step = 3;
  t_.Join("a", 0, 1, "run-2");
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(t_.Got<JoinRefused>("a")->reason,
              HasSubstr("of which this job knows nothing"));
}

TEST_F(RegroupTest, ACoordinatorThatWasAwayLearnsThatTheGenerationEnded) {
  Start(OnShrink::kContinue);
  t_.RestartCoordinator();
  t_.Connect("a", "x", /*same_process=*/true);
  t_.Connect("b", "y", /*same_process=*/true);
  Return("a", 0, 7);
  EXPECT_TRUE(t_.journal().groups.at(t_.group).ended);
  Return("a", 1, 7);
  Return("b", 2, 7);
  Return("b", 3, 7);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 4u);
}

// Between a rank's leaving and the others' next step, which may be long after.
TEST_F(RegroupTest, ACoordinatorThatWasAwayKnowsWhoDetached) {
  Start(OnShrink::kPause);
  t_.Leave("b", 2, "detached");
  t_.Leave("b", 3, "detached");
  t_.Advance(absl::Milliseconds(100));
  t_.RestartCoordinator();
  t_.Connect("a", "x", /*same_process=*/true);
  t_.Connect("b", "y", /*same_process=*/true);
  t_.Rejoin("a", 0, 1);
  t_.Rejoin("a", 1, 1);
  EndAt("a", {0, 1}, 9);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 2u);
}

TEST_F(RegroupTest, ACoordinatorThatWasAwayIsToldWhoDetachedMeanwhile) {
  Start(OnShrink::kPause);
  t_.RestartCoordinator();
  t_.Connect("a", "x", /*same_process=*/true);
  t_.Connect("b", "y", /*same_process=*/true);
  t_.Rejoin("a", 0, 1);
  t_.Rejoin("a", 1, 1);
  t_.Leave("b", 2, "detached");
  t_.Leave("b", 3, "detached");
  EndAt("a", {0, 1}, 9);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 2u);
}

// Also when only the next coordinator but one forms the generation, and of a
// launch that lost some in an earlier generation.
TEST_F(RegroupTest, ALaunchIsCompleteWithoutThoseThatDetachedAfterRestarts) {
  Start(OnShrink::kPause);
  t_.Leave("b", 2, "detached");
  EndAt("a", {0, 1}, 9);
  t_.Leave("b", 3, "rank 2 left", true);
  Return("b", 3, 9);
  ASSERT_EQ(Newest().number, 2u);
  t_.Leave("b", 3, "killed by signal 9");
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "rank 3 left", true);
  for (int restart = 0; restart < 2; ++restart) {
    t_.RestartCoordinator();
    t_.Connect("a", "x", /*same_process=*/true);
    t_.Connect("b", "y", /*same_process=*/true);
  }
  for (uint32_t rank : {0, 1}) Return("a", rank, 12, 2);
  t_.Pass(60, {"a", "b"});
  t_.Join("b", 3, 4);  // Restarted; rank 2 is not.
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().world_size, 3u);
}

TEST_F(RegroupTest, WhoHasDetachedIsWrittenOnceATickAndOnlyWhereRanksGo) {
  Start(OnShrink::kPause);
  t_.Leave("b", 2, "detached");
  t_.Leave("b", 3, "detached");
  EXPECT_THAT(t_.records(), IsEmpty());
  t_.Advance(absl::Milliseconds(100));
  t_.Advance(absl::Milliseconds(100));
  ASSERT_EQ(t_.records().size(), 1u);
  const auto& record = std::get<TrainersDetached>(t_.records()[0]);
  EXPECT_THAT(record.ranks, ElementsAre(2, 3));

  TestCluster stay;
  stay.FormFour();
  stay.Clear();
  stay.Leave("b", 2, "detached");
  stay.Advance(absl::Milliseconds(100));
  EXPECT_THAT(stay.records(), IsEmpty());
}

TEST_F(RegroupTest, WhoDetachedWhileReadOnlyIsWrittenAfterwards) {
  Start(OnShrink::kPause);
  t_.state().SetReadOnly(true);
  t_.Leave("b", 3, "detached");
  t_.Pass(1, {"a", "b"});
  EXPECT_THAT(t_.records(), IsEmpty());
  t_.state().SetReadOnly(false);
  t_.Pass(1, {"a", "b"});
  EXPECT_THAT(t_.journal().groups.at(t_.group).detached_ranks, ElementsAre(3));
}

// As by a launcher that starts all of them anew.
TEST_F(RegroupTest, ALaunchThatLeftAsAWholeIsWaitedForAsAWhole) {
  Start(OnShrink::kPause);
  t_.Connect("c", "z");
  for (uint32_t rank : {0, 1}) t_.Join("c", rank, 2, "run-2");
  EndAt("a", {0, 1}, 7);
  EndAt("b", {2, 3}, 7);
  ASSERT_EQ(Newest().world_size, 6u);
  for (uint32_t rank : {0, 1}) t_.Leave("c", rank, "detached");
  t_.Clear();
  t_.Join("c", 0, 2, "run-2");
  EXPECT_FALSE(t_.Got<EndGeneration>("a"));
  t_.Join("c", 1, 2, "run-2");
  EXPECT_TRUE(t_.Got<EndGeneration>("a"));
}

}  // namespace
}  // namespace pactrain::coordinator
