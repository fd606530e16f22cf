// Who leaves in order takes its state along, and nobody goes on from an older
// one.
#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::GroupWaiting;
using protocol::JoinRefused;
using protocol::OnShrink;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LeftInOrderTest : public RegroupTest {
 protected:
  // It is late; the others train on.
  void GoOnWithoutRankThree() {
    Start(OnShrink::kContinue);
    t_.Leave("b", 3, "rank 3 is late", true, {}, /*straggled=*/true);
    EndAt("b", {2}, 7);
    EndAt("a", {0, 1}, 7);
    ASSERT_EQ(Newest().number, 2u);
    t_.Report("a", 1, 4);
  }
};

TEST_F(LeftInOrderTest, WhoLeftInOrderTookTheNewestStateAlong) {
  for (const bool restarted : {false, true}) {
    t_ = TestCluster();
    GoOnWithoutRankThree();
    for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "detached");
    t_.Leave("b", 2, "detached");
    t_.Clear();
    if (restarted) {
      t_.RestartCoordinator();
      t_.Connect("b", "y", /*same_process=*/true);
    }
    Return("b", 3, 7);
    ASSERT_EQ(Newest().number, 2u);
    const auto refused = t_.Got<JoinRefused>("b");
    ASSERT_TRUE(refused);
    EXPECT_TRUE(refused->replaced);
    EXPECT_THAT(refused->reason,
                AllOf(HasSubstr("rank 3 holds a state of lineage"),
                      HasSubstr("after 7 steps, which is over: all that held "
                                "its newest state left in order at ")));
    t_.Connect("c", "z");
    t_.Join("c", 0, 1, "run-2");
    EXPECT_EQ(Newest().number, 3u);
    EXPECT_FALSE(Newest().donor);
  }
}

TEST_F(LeftInOrderTest, WhoIsOneStepBehindThoseWhoLeftInOrderGoesNotOn) {
  Start(OnShrink::kContinue);
  t_.Report("a", 1, 7);
  const uint64_t after = Newest().base_step + 7;
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "detached");
  t_.Leave("b", 2, "killed by signal 9");
  t_.Leave("b", 3, "rank 2 was lost", true);
  Return("b", 3, after - 1);
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_TRUE(t_.Got<JoinRefused>("b"));
}

// They have nothing that those who go on lack.
TEST_F(LeftInOrderTest, WhoLeftInOrderLeavesTheOthersTheirState) {
  Start(OnShrink::kContinue);
  t_.Report("a", 1, 7);
  const uint64_t after = Newest().base_step + 7;
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "detached");
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "rank 0 left", true);
  for (uint32_t rank : {2, 3}) Return("b", rank, after);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_TRUE(Newest().donor);
}

// Rank 0 ended between two steps, so the one that rank 2 had voted for, and was
// reported as if it were committed, came to nothing.
TEST_F(LeftInOrderTest, WhatOthersOnlyVotedForIsNotWithThoseWhoLeft) {
  for (const bool restarted : {false, true}) {
    t_ = TestCluster();
    Start(OnShrink::kContinue);
    const uint64_t after = Newest().base_step + 7;
    const auto end_at_b = [&] {
      t_.Report("b", 1, 8);
      for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "rank 0 left", true);
      for (uint32_t rank : {2, 3}) Return("b", rank, after);
    };
    if (restarted) {
      t_.RestartCoordinator();
      t_.Connect("b", "y", /*same_process=*/true);
      end_at_b();
      t_.Connect("a", "x", /*same_process=*/true);
    }
    t_.Report("a", 1, 7);
    t_.Leave("a", 0, "detached");
    t_.Leave("a", 1, "rank 0 left", true);
    if (!restarted) end_at_b();
    Return("a", 1, after);
    EXPECT_FALSE(t_.Got<JoinRefused>("b"));
    EXPECT_EQ(Newest().number, 2u);
    EXPECT_TRUE(Newest().donor);
  }
}

// It never had the state, and those who had are dead.
TEST_F(LeftInOrderTest, WhoLeftBeforeItHadTheStateTookNothing) {
  Start(OnShrink::kContinue);
  t_.Leave("b", 3, "rank 3 is late", true, {}, /*straggled=*/true);
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  EndAt("b", {2}, 9);
  EndAt("a", {0, 1}, 9);
  ASSERT_EQ(Newest().needs_state.size(), 1u);
  t_.Leave("c", 0, "detached");
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "killed by signal 9");
  t_.Leave("b", 2, "killed by signal 9");
  Return("b", 3, 7);
  EXPECT_FALSE(t_.Got<JoinRefused>("b"));
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().lineage.committed, 7u);
}

// It may have the newest state, so it decides.
TEST_F(LeftInOrderTest, WhoIsOutOfSightIsWaitedForBeforeAnOlderStateGoesOn) {
  GoOnWithoutRankThree();
  t_.Disconnect("a");
  t_.Leave("b", 2, "detached");
  Return("b", 3, 7);
  t_.Pass(3600, {"b"});
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_THAT(t_.Got<GroupWaiting>("b")->reason,
              AllOf(HasSubstr("the newest state is with ranks that left"),
                    HasSubstr("rank 0 (agent 'a', site 'x')")));
  t_.Connect("a", "x", /*same_process=*/true);
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "detached");
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_TRUE(t_.Got<JoinRefused>("b"));
}

}  // namespace
}  // namespace pactrain::coordinator
