// A state directory that was made of a backup on purpose: what agents know and
// it does not.
#include "base/status_matchers.h"
#include "coordinator/core/test_regroup.h"

namespace pactrain::coordinator {
namespace {

using protocol::EndGeneration;
using protocol::JoinRefused;
using protocol::OnShrink;
using protocol::Prepare;
using protocol::Welcome;
using ::testing::HasSubstr;

class RestoredTest : public RegroupTest {
 protected:
  // The backup is from just before that; all agents heard of it.
  void LoseAPin() {
    t_.BackUp();
    t_.Pin(Pin{protocol::Mode::kFull, protocol::Codec::kFp32});
  }
  void ConnectAll() {
    t_.Connect("a", "x", /*same_process=*/true);
    t_.Connect("b", "y", /*same_process=*/true);
  }
};

TEST_F(RestoredTest, AgentsThatKnowMoreAreTaken) {
  Start(OnShrink::kPause);
  LoseAPin();
  t_.RestoreOnPurpose();
  ConnectAll();
  EXPECT_TRUE(t_.Got<Welcome>("a"));
  EXPECT_TRUE(t_.Got<Welcome>("b"));
  // Also by the next coordinator on it, where they have not been yet.
  t_.RestartCoordinator();
  ConnectAll();
  EXPECT_TRUE(t_.Got<Welcome>("b"));
}

TEST_F(RestoredTest, AnOlderCopyOfWhatWasRestoredIsRefusedStill) {
  Start(OnShrink::kPause);
  LoseAPin();
  t_.RestoreOnPurpose();
  ConnectAll();
  LoseAPin();
  t_.Restore();
  ConnectAll();
  EXPECT_THAT(std::string(t_.Closed("b").message()),
              HasSubstr("THE STATE DIRECTORY IS AN OLDER COPY"));
}

TEST_F(RestoredTest, TheSameGenerationRunsOn) {
  Start(OnShrink::kAbort);
  LoseAPin();
  t_.RestoreOnPurpose();
  ConnectAll();
  for (uint32_t rank : {0, 1}) t_.Rejoin("a", rank, 1);
  for (uint32_t rank : {2, 3}) t_.Rejoin("b", rank, 1);
  t_.Pass(60, {"a", "b"});
  EXPECT_FALSE(t_.Got<EndGeneration>("a"));
  EXPECT_EQ(t_.Snapshot().phase, GroupPhase::kRunning);
}

TEST_F(RestoredTest, WhatWasFormedSinceGoesOnInAGenerationBeyondIt) {
  Start(OnShrink::kContinue);
  t_.BackUp();
  LoseRankThree();
  ASSERT_EQ(Newest().number, 2u);
  t_.RestoreOnPurpose();
  ConnectAll();
  for (uint32_t rank : {0, 1}) t_.Rejoin("a", rank, 2);
  t_.Rejoin("b", 2, 2);
  ASSERT_TRUE(t_.Got<EndGeneration>("a"));
  EXPECT_EQ(t_.Got<EndGeneration>("a")->generation, 2u);
  for (uint32_t rank : {0, 1}) Return("a", rank, 900);
  Return("b", 2, 900);
  t_.Pass(12, {"a", "b"});
  EXPECT_GT(Newest().number, 1000u);
  EXPECT_GT(Newest().term, 1000u);
  EXPECT_EQ(Newest().world_size, 3u);
  EXPECT_TRUE(Newest().donor);
  EXPECT_EQ(Newest().lineage.committed, 900u);
}

TEST_F(RestoredTest, ALineageThatBeganSinceIsTheJobs) {
  Start(OnShrink::kPause);
  t_.BackUp();
  t_.replace = true;
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  t_.replace = false;
  ASSERT_EQ(Newest().number, 2u);
  for (const char* agent : {"a", "b"}) t_.ForgetTrainers(agent);  // They ended.
  t_.RestoreOnPurpose();
  ConnectAll();
  t_.Connect("c", "z", /*same_process=*/true);
  t_.Rejoin("c", 0, 2);
  EXPECT_TRUE(t_.Got<EndGeneration>("c"));
  Return("c", 0, 5, 2, 1, "run-2");
  EXPECT_FALSE(t_.Got<JoinRefused>("c"));
  // Who holds the older one is out of the job, as before the backup was needed.
  Return("a", 0, 9000);
  ASSERT_TRUE(t_.Got<JoinRefused>("a"));
  EXPECT_TRUE(t_.Got<JoinRefused>("a")->replaced);
  // Nobody can say how many it was: with `pause` as many as before are waited
  // for.
  for (uint32_t rank : {0, 1, 2}) Return("c", rank, 4, 2, 3, "run-3");
  t_.Pass(12, {"a", "b", "c"});
  EXPECT_GT(Newest().number, 1000u);
  EXPECT_EQ(Newest().lineage.id, t_.LineageOf(2));
}

TEST_F(RestoredTest, OfLineagesThatBeganSinceTheLastIsTheJobs) {
  Start(OnShrink::kPause);
  t_.BackUp();
  t_.replace = true;
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  t_.Join("c", 0, 1, "run-3");
  t_.replace = false;
  ASSERT_EQ(Newest().number, 3u);
  for (const char* agent : {"a", "b"}) t_.ForgetTrainers(agent);  // They ended.
  t_.RestoreOnPurpose();
  ConnectAll();
  t_.Connect("c", "z", /*same_process=*/true);
  Return("c", 0, 5, 3, 1, "run-3");
  EXPECT_FALSE(t_.Got<JoinRefused>("c"));
  Return("a", 0, 9000, 2, 1, "run-2");
  ASSERT_TRUE(t_.Got<JoinRefused>("a"));
  EXPECT_THAT(t_.Got<JoinRefused>("a")->reason,
              HasSubstr("of which this job knows nothing"));
  for (uint32_t rank : {0, 1, 2}) Return("c", rank, 4, 3, 3, "run-4");
  t_.Pass(12, {"a", "b", "c"});
  EXPECT_EQ(Newest().lineage.id, t_.LineageOf(3));
}

TEST_F(RestoredTest, ADecisionThatWasMadeSinceIsReplaced) {
  Start(OnShrink::kAbort);
  t_.BackUp();
  t_.RestoreOnPurpose();
  ConnectAll();
  for (uint32_t rank : {0, 1}) t_.Rejoin("a", rank, 1);
  for (uint32_t rank : {2, 3}) t_.Rejoin("b", rank, 1);
  t_.Report("a", 1, 10);
  EXPECT_FALSE(t_.Got<Prepare>("a"));
  t_.Report("a", 7, 20);
  const auto prepare = t_.Got<Prepare>("a");
  ASSERT_TRUE(prepare);
  EXPECT_GT(prepare->decision.version, 1000u);
  EXPECT_EQ(prepare->decision.mode, protocol::Mode::kFull);
  EXPECT_THAT(prepare->decision.reason, HasSubstr("backup"));
}

}  // namespace
}  // namespace pactrain::coordinator
