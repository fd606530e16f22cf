#include "base/status_matchers.h"
#include "coordinator/core/test_regroup.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using protocol::EndGeneration;
using protocol::JoinRefused;
using protocol::OnShrink;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DrainTest : public RegroupTest {
 protected:
  absl::StatusOr<std::vector<std::string>> Drain(const std::string& agent,
                                                 bool force = false) {
    auto drained = t_.state().Drain(agent, "ann", force, t_.now());
    if (!drained.ok()) return drained.status();
    t_.Act(std::move(drained->effects));
    return drained->jobs;
  }
  // The agents end their generation, and their trainers attach again.
  void ComeAgain() {
    EndAt("b", {2, 3}, 7);
    EndAt("a", {0, 1}, 7);
    t_.Pass(12, {"a", "b"});
  }
};

TEST_F(DrainTest, TheOthersGoOnWithoutWaitingForAnybody) {
  for (const OnShrink on_shrink : {OnShrink::kPause, OnShrink::kContinue}) {
    t_ = TestCluster();
    Start(on_shrink);
    EXPECT_THAT(*Drain("b"), ElementsAre("job"));
    EXPECT_THAT(t_.Got<EndGeneration>("a")->reason,
                HasSubstr("'b' was drained by ann"));
    ComeAgain();
    EXPECT_THAT(t_.Got<JoinRefused>("b")->reason,
                HasSubstr("takes no trainers until it is started again"));
    EXPECT_FALSE(t_.Got<JoinRefused>("a"));
    EXPECT_EQ(Newest().number, 2u);
    EXPECT_EQ(Newest().world_size, 2u);
    EXPECT_EQ(Newest().lineage.committed, 7u);
    // Its process is the same; another one is let in.
    t_.Connect("b", "y", /*same_process=*/true);
    t_.Join("b", 0, 1, "run-2");
    EXPECT_TRUE(t_.Got<JoinRefused>("b"));
    t_.Disconnect("b");
    t_.Clear();
    t_.Connect("b", "y");
    t_.Join("b", 0, 1, "run-3");
    EXPECT_FALSE(t_.Got<JoinRefused>("b"));
    EXPECT_TRUE(t_.Got<EndGeneration>("a"));
  }
}

TEST_F(DrainTest, ItOutlivesTheCoordinator) {
  Start(OnShrink::kContinue);
  EXPECT_THAT(*Drain("b"), ElementsAre("job"));
  t_.RestartCoordinator();
  t_.Connect("b", "y", /*same_process=*/true);
  t_.Join("b", 0, 1, "run-2");
  EXPECT_THAT(t_.Got<JoinRefused>("b")->reason,
              HasSubstr("'b' was drained by ann"));
  // Another process ends it, also for coordinators to come.
  t_.Disconnect("b");
  t_.Clear();
  t_.Connect("b", "y");
  EXPECT_THAT(t_.journal().drained, IsEmpty());
  t_.Join("b", 0, 1, "run-3");
  EXPECT_FALSE(t_.Got<JoinRefused>("b"));
}

TEST_F(DrainTest, ItIsTakenBack) {
  Start(OnShrink::kContinue);
  EXPECT_THAT(*Drain("b"), ElementsAre("job"));
  EXPECT_THAT(t_.state().Undrain("a").status(),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("'a' is not drained; drained are: b")));
  ASSERT_OK_AND_ASSIGN(Effects effects, t_.state().Undrain("b"));
  t_.Act(std::move(effects));
  EXPECT_THAT(t_.journal().drained, IsEmpty());
  EXPECT_EQ(t_.state().Snapshot(t_.now()).agents[1].drained, "");
  ComeAgain();
  EXPECT_FALSE(t_.Got<JoinRefused>("b"));
}

TEST_F(DrainTest, WhatItWouldEndIsNamed) {
  Start(OnShrink::kAbort);
  EXPECT_THAT(Drain("b").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("would end job, whose other ranks")));
  EXPECT_EQ(t_.Snapshot().phase, GroupPhase::kRunning);
  EXPECT_EQ(t_.state().Snapshot(t_.now()).agents[1].drained, "");
  EXPECT_THAT(*Drain("b", /*force=*/true), ElementsAre("job"));
  EXPECT_EQ(t_.Snapshot().phase, GroupPhase::kFailed);
  EXPECT_THAT(t_.state().Snapshot(t_.now()).agents[1].drained,
              HasSubstr("drained by ann"));
}

TEST_F(DrainTest, AllRanksOfAJobTakeItsStateAlong) {
  t_.Connect("c", "z");
  t_.on_shrink = OnShrink::kContinue;
  t_.Join("c", 0, 1);
  EXPECT_THAT(
      Drain("c").status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("would end")));
}

TEST_F(DrainTest, WhoWaitsThereIsRefused) {
  t_.Connect("a", "x");
  t_.Join("a", 0, 2);
  EXPECT_THAT(*Drain("a"), IsEmpty());
  EXPECT_THAT(t_.Got<JoinRefused>("a")->reason, HasSubstr("drained"));
}

TEST_F(DrainTest, ItIsOfAgentsThatAreThere) {
  Start(OnShrink::kPause);
  EXPECT_THAT(Drain("z").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'z'")));
  t_.state().SetReadOnly(true);
  EXPECT_THAT(Drain("b").status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("journal")));
}

}  // namespace
}  // namespace pactrain::coordinator
