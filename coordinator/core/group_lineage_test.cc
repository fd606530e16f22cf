// Whose state a job's is: nobody begins beside one that may live, and no state
// goes back.
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::EndGeneration;
using protocol::GroupWaiting;
using protocol::JoinRefused;
using protocol::OnShrink;
using protocol::StartGeneration;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

class LineageTest : public RegroupTest {
 protected:
  // All of it trained, and the coordinator sees none of it any more.
  void StartAndLoseSight(OnShrink on_shrink) {
    Start(on_shrink);
    for (const char* agent : {"a", "b"}) {
      t_.Report(agent, 1, 5000);
      t_.Disconnect(agent);
    }
    t_.Connect("c", "z");
  }
  void Kill() {
    for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "killed by signal 9");
    for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "killed by signal 9");
  }
  // The members are back in sight, in the generation that they never left.
  void ComeBack() {
    t_.Connect("a", "x", /*same_process=*/true);
    t_.Connect("b", "y", /*same_process=*/true);
    for (uint32_t rank : {0, 1}) t_.Rejoin("a", rank, 1);
    for (uint32_t rank : {2, 3}) t_.Rejoin("b", rank, 1);
  }
};

// D1.
TEST_F(LineageTest, NothingBeginsBesideAJobThatIsOnlyOutOfSight) {
  for (const OnShrink on_shrink : {OnShrink::kPause, OnShrink::kContinue}) {
    t_ = TestCluster();
    StartAndLoseSight(on_shrink);
    t_.Join("c", 0, 1, "run-2");
    t_.Pass(3600, {"c"});
    EXPECT_FALSE(t_.Got<StartGeneration>("c"));
    EXPECT_FALSE(t_.journal().groups.at(t_.group).ended);
    EXPECT_THAT(t_.Got<GroupWaiting>("c")->reason,
                AllOf(HasSubstr("rank 0 (agent 'a', site 'x')"),
                      HasSubstr("since 1970-01-01T00:16:40Z"),
                      HasSubstr("it may be training")));
    ComeBack();
    t_.Advance(absl::Seconds(1));
    EXPECT_TRUE(t_.Got<EndGeneration>("a"));
    for (uint32_t rank : {0, 1}) Return("a", rank, 9000);
    for (uint32_t rank : {2, 3}) Return("b", rank, 9000);
    EXPECT_EQ(Newest().number, 2u);
    EXPECT_EQ(Newest().lineage.committed, 9000u);
    EXPECT_EQ(Newest().needs_state.size(), 1u);
  }
}

TEST_F(LineageTest, NothingBeginsBesideMembersThatAreToAttachAgain) {
  Start(OnShrink::kPause);
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  ASSERT_TRUE(t_.journal().groups.at(t_.group).ended);
  t_.Disconnect("a");
  t_.Disconnect("b");
  t_.Pass(3600, {"c"});
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(t_.Got<GroupWaiting>("c")->reason,
              AllOf(HasSubstr("rank 0 (agent 'a', site 'x') may hold"),
                    HasSubstr("pactrain-admin forget job"),
                    HasSubstr("PACTRAIN_REPLACE=1")));
}

// It was the only one with the state: the others had not taken it yet.
TEST_F(LineageTest, NothingBeginsBesideAStragglerThatHoldsTheState) {
  Start(OnShrink::kContinue);
  t_.Connect("c", "z");
  t_.Leave("a", 0, "rank 0 is late", true, {}, /*straggled=*/true);
  t_.Leave("a", 1, "killed by signal 9");
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "killed by signal 9");
  t_.Join("c", 0, 1, "run-2");
  t_.Pass(3600, {"a", "b", "c"});
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(t_.Got<GroupWaiting>("c")->reason,
              AllOf(HasSubstr("rank 0 (agent"),
                    HasSubstr("it was too slow; generation 1 is over since "),
                    HasSubstr("If it hangs, end its process"),
                    Not(HasSubstr("forget"))));
  EXPECT_THAT(t_.state().Forget("job", "eve", t_.now()).status(),
              base::StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("has 1 live rank")));
  Return("a", 0, 7);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().lineage.committed, 7u);
}

TEST_F(LineageTest, AStragglerIsWaitedForIfItAloneHasTheNewestState) {
  Start(OnShrink::kContinue);
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "rank 3 left", true);
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "rank 3 left", true);
  Return("a", 0, 8);
  for (uint32_t rank : {1, 2, 3}) Return(rank < 2 ? "a" : "b", rank, 7);
  ASSERT_EQ(Newest().needs_state.size(), 3u);
  // It came to no step, so nobody took the state.
  t_.Leave("a", 0, "rank 0 is late", true, {}, /*straggled=*/true);
  t_.Leave("a", 1, "rank 0 is late", true);
  Return("a", 1, 7, 2);
  for (uint32_t rank : {2, 3}) {
    t_.Leave("b", rank, "rank 0 is late", true);
    Return("b", rank, 7, 2);
  }
  t_.Pass(3600, {"a", "b"});
  EXPECT_EQ(Newest().number, 2u);
  Return("a", 0, 8, 2);
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().lineage.committed, 8u);
}

TEST_F(LineageTest, NoStragglerIsWaitedForByThoseWhoHaveItsState) {
  Start(OnShrink::kContinue);
  t_.Leave("a", 0, "rank 0 is late", true, {}, /*straggled=*/true);
  t_.Leave("a", 1, "rank 0 is late", true);
  Return("a", 1, 7);
  for (uint32_t rank : {2, 3}) {
    t_.Leave("b", rank, "rank 0 is late", true);
    Return("b", rank, 7);
  }
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 3u);
}

// Its connection told that it died.
TEST_F(LineageTest, AStragglerThatDiesIsWaitedForNoLonger) {
  Start(OnShrink::kContinue);
  t_.Connect("c", "z");
  t_.Leave("a", 0, "rank 0 is late", true, {}, /*straggled=*/true);
  t_.Leave("a", 1, "killed by signal 9");
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "killed by signal 9");
  t_.Join("c", 0, 1, "run-2");
  t_.Leave("a", 0, "killed by signal 9");
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_FALSE(Newest().donor);
}

TEST_F(LineageTest, ARestartedAgentIsNoProofThatItsTrainersAreDead) {
  StartAndLoseSight(OnShrink::kPause);
  t_.Connect("a", "x");  // Others.
  t_.Connect("b", "y");
  for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4, "run-2");
  for (uint32_t rank : {2, 3}) t_.Join("b", rank, 4, "run-2");
  t_.Pass(3600, {"a", "b", "c"});
  EXPECT_EQ(Newest().number, 1u);
}

// It knows their processes, and that they are dead.
TEST_F(LineageTest, ARestartedAgentSaysWhichOfItsTrainersAreDead) {
  for (const bool restarted : {false, true}) {
    t_ = TestCluster();
    StartAndLoseSight(OnShrink::kPause);
    const protocol::Generation lost = Newest();
    if (restarted) t_.RestartCoordinator();
    t_.Connect("a", "x");
    t_.Connect("b", "y");
    for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4, "run-2");
    for (uint32_t rank : {2, 3}) t_.Join("b", rank, 4, "run-2");
    const auto dies = [&](const char* agent, size_t member, size_t i) {
      const protocol::Member& m = lost.members[member];
      // By a later attach than the one of the generation, too.
      protocol::Digest attach_id = m.attach_ids[i];
      attach_id.lo += i;
      t_.Say(agent, protocol::TrainerLeft{t_.group, m.ranks[i], attach_id,
                                          "ended while its agent was away"});
    };
    dies("a", 0, 0);
    dies("a", 0, 1);
    dies("b", 1, 0);
    // Nobody speaks for another agent's.
    dies("a", 1, 1);
    t_.Pass(60, {"a", "b"});
    EXPECT_EQ(Newest().number, 1u);
    dies("b", 1, 1);
    EXPECT_EQ(Newest().number, 2u);
    EXPECT_FALSE(Newest().donor);
  }
}

// Who came back to the restarted agent lives, whatever its book has of it.
TEST_F(LineageTest, WhoAttachedAgainIsNotTakenForDead) {
  StartAndLoseSight(OnShrink::kContinue);
  const protocol::Generation lost = Newest();
  t_.Connect("a", "x");
  t_.Connect("b", "y");
  Return("a", 0, 7);
  t_.Say("a", protocol::TrainerLeft{t_.group, 0, lost.members[0].attach_ids[0],
                                    "ended while its agent was away"});
  t_.Pass(60, {"a", "b"});
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 1u);
  EXPECT_THAT(Newest().donor, Optional(0u));
}

TEST_F(LineageTest, ARestartedCoordinatorWaitsForThemToo) {
  Start(OnShrink::kContinue);
  t_.RestartCoordinator();
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  t_.Pass(3600, {"c"});
  EXPECT_EQ(Newest().number, 1u);
}

// Those that a generation was formed without hold a state, too.
TEST_F(LineageTest, WhoWasLeftBehindIsWaitedForAlsoAfterARestart) {
  Start(OnShrink::kContinue);
  EndAt("a", {0, 1}, 7);
  t_.Pass(60, {"a"});
  ASSERT_EQ(Newest().number, 2u);
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "killed by signal 9");
  for (const bool restarted : {false, true}) {
    if (restarted) {
      t_.RestartCoordinator();
      t_.Connect("a", "x", /*same_process=*/true);
    }
    for (uint32_t rank : {0, 1}) t_.Join("a", rank, 2, "run-2");
    t_.Pass(60, {"a"});
    EXPECT_EQ(Newest().number, 2u);
    EXPECT_THAT(t_.Got<GroupWaiting>("a")->reason,
                HasSubstr("rank 2 (agent 'b', site 'y')"));
  }
  t_.Connect("b", "y", /*same_process=*/true);
  for (uint32_t rank : {2, 3}) Return("b", rank, 7);
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().lineage.committed, 7u);
}

TEST_F(LineageTest, AllKilledWithLiveAgentsBeginsAtOnce) {
  Start(OnShrink::kPause);
  const protocol::Digest first = Newest().lineage.id;
  Kill();
  for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4, "run-2");
  for (uint32_t rank : {2, 3}) t_.Join("b", rank, 4, "run-2");
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_FALSE(Newest().donor);
  EXPECT_NE(Newest().lineage.id, first);
}

TEST_F(LineageTest, WhoIsSilentLongerThanAllowedIsPresumedDead) {
  Options options;
  options.presume_dead_after = absl::Seconds(60);
  t_ = TestCluster(options);
  StartAndLoseSight(OnShrink::kPause);
  t_.Pass(30, {"c"});
  t_.Join("c", 0, 1, "run-2");
  t_.Pass(29, {"c"});
  EXPECT_EQ(Newest().number, 1u);
  t_.Pass(2, {"c"});  // Counted from the disconnect.
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_FALSE(Newest().donor);
}

// D2: one agent; generation 2 is in the journal, and the agent dies before it
// hears of it.
TEST_F(LineageTest, AGenerationThatNeverBeganOrphansNoState) {
  t_.on_shrink = OnShrink::kPause;
  t_.Connect("a", "x");
  for (uint32_t rank : {0, 1}) t_.Join("a", rank, 2);
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "run-2 joins", true);
  for (uint32_t rank : {0, 1}) Return("a", rank, 5000, 1, 2);
  ASSERT_EQ(Newest().number, 2u);
  t_.Clear();
  t_.Disconnect("a");
  t_.Connect("a", "x");
  for (uint32_t rank : {0, 1}) Return("a", rank, 5000, 1, 2);
  t_.Leave("c", 0, "agent a was restarted", true);
  t_.Leave("c", 0, "detached");
  t_.Pass(30, {"a", "c"});
  EXPECT_FALSE(t_.Got<JoinRefused>("a"));
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_THAT(Newest().donor, Optional(0u));
  EXPECT_EQ(Newest().lineage.committed, 5000u);
}

TEST_F(LineageTest, TheNewestStateGivesAlsoIfItsGenerationNeverBegan) {
  Start(OnShrink::kContinue);
  EndAt("b", {2, 3}, 7);
  EndAt("a", {0, 1}, 8);  // Current.
  ASSERT_EQ(Newest().number, 2u);
  t_.Leave("a", 1, "left before the generation began");
  t_.Leave("a", 0, "its generation could not begin");
  Return("a", 0, 8, 1);
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "rank 1 left", true);
  for (uint32_t rank : {2, 3}) Return("b", rank, 7);  // They had needed it.
  t_.Pass(1, {"a", "b"});
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().lineage.committed, 8u);
  EXPECT_THAT(Newest().needs_state, ElementsAre(1, 2));
}

// The donor alone had the last commit, and died as it gave its state.
TEST_F(LineageTest, TheStateOneStepBehindIsNotThrownAway) {
  Start(OnShrink::kContinue);
  EndAt("a", {0}, 8);
  t_.Leave("a", 1, "killed by signal 9");
  EndAt("b", {2, 3}, 7);
  ASSERT_EQ(Newest().needs_state.size(), 2u);
  t_.Leave("a", 0, "killed by signal 9");
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "rank 0 left", true);
  for (uint32_t rank : {2, 3}) Return("b", rank, 7);
  t_.Pass(1, {"a", "b"});
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().lineage.committed, 7u);
  EXPECT_THAT(Newest().needs_state, IsEmpty());
}

// D3.
TEST_F(LineageTest, ABlipOfAStreamIsNoAbsence) {
  Start(OnShrink::kContinue);
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "run-2 joins", true);
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "run-2 joins", true);
  for (uint32_t rank : {0, 1}) Return("a", rank, 7);
  t_.Pass(30, {"a", "b", "c"});
  t_.Disconnect("b");
  t_.Pass(9, {"a", "c"});
  EXPECT_EQ(Newest().number, 1u);
  t_.Pass(2, {"a", "c"});
  EXPECT_EQ(Newest().number, 2u);
}

// D6.
TEST_F(LineageTest, ANewcomerEndsNothingThatAnUnseenMemberTakesPartIn) {
  Start(OnShrink::kContinue);
  t_.Disconnect("b");
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  t_.Pass(60, {"a", "c"});
  EXPECT_FALSE(t_.Got<EndGeneration>("a"));
  EXPECT_THAT(t_.Got<GroupWaiting>("c")->reason,
              HasSubstr("joining it when rank 2 (agent 'b', site 'y') is in "
                        "sight again"));
  EXPECT_THAT(t_.Snapshot().reason,
              HasSubstr("; a launch waits: generation 1 runs; joining it when "
                        "rank 2 (agent 'b', site 'y') is in sight again"));
  t_.Connect("b", "y", /*same_process=*/true);
  EXPECT_FALSE(t_.Got<EndGeneration>("a"));  // Not named yet.
  for (uint32_t rank : {2, 3}) t_.Rejoin("b", rank, 1);
  t_.Advance(absl::Seconds(1));
  EXPECT_TRUE(t_.Got<EndGeneration>("a"));
}

TEST_F(LineageTest, AReplacingLaunchBeginsAtOnceAndTheOldOnesAreOut) {
  StartAndLoseSight(OnShrink::kPause);
  t_.replace = true;
  for (uint32_t rank : {0, 1}) t_.Join("c", rank, 3, "run-2");
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(t_.Got<GroupWaiting>("c")->reason,
              HasSubstr("replaces nothing (PACTRAIN_REPLACE) before"));
  t_.Join("c", 2, 3, "run-2");
  t_.replace = false;
  ASSERT_EQ(Newest().number, 2u);
  EXPECT_FALSE(Newest().donor);
  ComeBack();
  EXPECT_TRUE(t_.Got<EndGeneration>("a"));
  EXPECT_FALSE(t_.Got<EndGeneration>("c"));
  Return("a", 0, 9000);
  const auto refused = t_.Got<JoinRefused>("a");
  ASSERT_TRUE(refused);
  EXPECT_TRUE(refused->replaced);
  EXPECT_THAT(refused->reason,
              AllOf(HasSubstr("after 9000 steps, which is over"),
                    HasSubstr("launch 'run-2' of 3 ranks replaced it"),
                    HasSubstr("at 1970-01-01T00:16:41Z")));
  t_.Pass(60, {"a", "b", "c"});
  EXPECT_EQ(Newest().number, 2u);
}

TEST_F(LineageTest, AReplacementIsForgottenByNoRestart) {
  StartAndLoseSight(OnShrink::kPause);
  t_.replace = true;
  t_.Join("c", 0, 1, "run-2");
  t_.RestartCoordinator();
  t_.Connect("a", "x", /*same_process=*/true);
  Return("a", 0, 9000);
  EXPECT_TRUE(t_.Got<JoinRefused>("a")->replaced);
}

// It acts in a launch's first generation only: who holds a state goes on.
TEST_F(LineageTest, ReplacingIsNotDoneAgainAtRegroups) {
  t_.replace = true;
  Start(OnShrink::kContinue);
  LoseRankThree();
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_TRUE(Newest().donor);
  t_.Join("b", 3, 4);  // Its launcher started it again.
  for (uint32_t rank : {0, 1}) Return("a", rank, 900, 2);
  Return("b", 2, 900, 2);
  EXPECT_EQ(Newest().world_size, 4u);
  EXPECT_THAT(Newest().needs_state, ElementsAre(3));
}

TEST_F(LineageTest, RanksInSightAreReplacedToo) {
  Start(OnShrink::kPause);
  t_.Connect("c", "z");
  t_.replace = true;
  t_.Join("c", 0, 1, "run-2");
  t_.replace = false;
  EXPECT_THAT(t_.Got<EndGeneration>("a")->reason,
              HasSubstr("launch 'run-2' replaces the job"));
  EXPECT_EQ(Newest().number, 2u);
  for (uint32_t rank : {0, 1}) Return("a", rank, 7);
  EXPECT_TRUE(t_.Got<JoinRefused>("a")->replaced);
}

TEST_F(LineageTest, AForgottenJobBeginsAnew) {
  StartAndLoseSight(OnShrink::kPause);
  t_.Join("c", 0, 1, "run-2");
  ASSERT_EQ(Newest().number, 1u);
  auto effects = t_.state().Forget("job", "operator eve", t_.now());
  ASSERT_OK(effects.status());
  t_.Act(*std::move(effects));
  EXPECT_EQ(Newest().number, 2u);
  ComeBack();
  Return("a", 0, 9000);
  EXPECT_THAT(t_.Got<JoinRefused>("a")->reason,
              HasSubstr("operator eve forgot it (pactrain-admin forget)"));
}

TEST_F(LineageTest, AJobInSightIsNotForgotten) {
  Start(OnShrink::kPause);
  EXPECT_THAT(t_.state().Forget("job", "eve", t_.now()).status(),
              base::StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("has 4 live ranks")));
  EXPECT_THAT(
      t_.state().Forget("other", "eve", t_.now()).status(),
      base::StatusIs(absl::StatusCode::kNotFound, HasSubstr("'other'")));
}

TEST_F(LineageTest, WhereTheJournalKnowsNoneMoreCommittedStepsWin) {
  t_.on_shrink = OnShrink::kPause;
  t_.Connect("a", "x");
  Return("a", 0, 40, /*generation=*/7, 2);
  Return("a", 1, 90, /*generation=*/8, 2);
  EXPECT_THAT(t_.Got<JoinRefused>("a")->reason,
              AllOf(HasSubstr("after 40 steps"), HasSubstr("after 90 steps")));
  t_.Join("a", 0, 2);
  EXPECT_EQ(Newest().number, 9u);  // After all that anybody has seen.
  EXPECT_THAT(Newest().donor, Optional(1u));
  EXPECT_EQ(Newest().lineage.id, t_.TrainerOf("a", 1).lineage.id);
  EXPECT_GE(Newest().base_step, 90u);
}

// D7.
TEST_F(LineageTest, MembersThatNeverReachEachOtherPartAfterSomeTries) {
  t_.on_shrink = OnShrink::kPause;
  t_.Connect("a", "x");
  t_.Connect("b", "y");
  for (uint32_t rank : {0, 1, 2}) t_.Join("a", rank, 4);
  t_.Join("b", 3, 4);
  for (int round = 1; round <= 10 && Newest().world_size == 4; ++round) {
    for (uint32_t r : {0, 1, 2}) t_.Leave("a", r, "b was cut off", true, {"b"});
    t_.Leave("b", 3, "a was cut off", true, {"a"});
    for (uint32_t r : {0, 1, 2}) Return("a", r, 5000);
    Return("b", 3, 5000);
    t_.Pass(1, {"a", "b"});
    EXPECT_LE(round, 4);
  }
  EXPECT_EQ(Newest().world_size, 3u);
  ASSERT_TRUE(t_.Got<JoinRefused>("b"));
  EXPECT_THAT(t_.Got<JoinRefused>("b")->reason,
              AllOf(HasSubstr("agents 'a' and 'b' did not reach each other"),
                    HasSubstr("agent 'b' is on the smaller side, which is out "
                              "of the job for 1m")));
  EXPECT_FALSE(t_.Got<JoinRefused>("a"));
}

}  // namespace
}  // namespace pactrain::coordinator
