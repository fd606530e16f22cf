// Who may speak for a trainer.
#include "coordinator/core/group.h"

#include "coordinator/core/test_cluster.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::EndGeneration;
using protocol::StartGeneration;
using protocol::TrainerJoined;
using protocol::TrainerLeft;

// Says of b's rank 2, which it knows as all members do, what only b may say.
void SpeakForRank2(TestCluster& t, const std::string& agent) {
  const protocol::Trainer theirs = t.TrainerOf("b", 2);
  t.Say(agent, TrainerLeft{t.group, 2, theirs.attach_id, "killed"});
  t.Say(agent, TrainerLeft{t.group, 2, theirs.attach_id, "detached"});
  t.Say(agent, TrainerJoined{t.group, theirs, 0});
}

TEST(Group, sec_NobodySpeaksForAnothersTrainer) {
  TestCluster t;
  t.FormFour();
  t.Connect("stranger", "z");
  t.Clear();
  for (const char* const agent : {"a", "stranger"}) {
    SpeakForRank2(t, agent);
    EXPECT_FALSE(t.Got<EndGeneration>("a").has_value());
    EXPECT_FALSE(t.Got<StartGeneration>(agent).has_value());
  }
  t.Leave("b", 2, "killed by signal 9");
  EXPECT_TRUE(t.Got<EndGeneration>("a").has_value());
}

TEST(Group, sec_NobodySpeaksForOneThatWaits) {
  TestCluster t;
  t.Connect("a", "x");
  t.Connect("b", "y");
  t.Join("b", 2, 4);
  SpeakForRank2(t, "a");
  t.Join("b", 3, 4);
  t.Join("a", 0, 4);
  t.Join("a", 1, 4);
  EXPECT_TRUE(t.Got<StartGeneration>("a").has_value());
}

// It knows the members then, but not yet whose trainer is whose.
TEST(Group, sec_NoStrangerSpeaksForATrainerAfterARestart) {
  TestCluster t;
  t.FormFour();
  t.RestartCoordinator();
  t.Connect("a", "x", /*same_process=*/true);
  t.Connect("b", "y", /*same_process=*/true);
  t.Connect("stranger", "z");
  t.Clear();
  SpeakForRank2(t, "stranger");
  EXPECT_FALSE(t.Got<EndGeneration>("a").has_value());
  EXPECT_FALSE(t.Got<StartGeneration>("stranger").has_value());
  t.Rejoin("b", 2, t.journal().groups.at(t.group).generation.number);
  SpeakForRank2(t, "a");
  EXPECT_FALSE(t.Got<EndGeneration>("a").has_value());
}

// D9. Reports tell of steps up to the last one but a few, and all agents that
// know better are lost.
TEST(ReadOnly, StepsThatWereUsedMeanwhileAreNotGivenOutAgain) {
  TestCluster t;
  t.FormFour();
  t.state().SetReadOnly(true);
  for (const char* agent : {"a", "b"}) t.Report(agent, 1, 5000);
  const uint64_t last = t.Snapshot().committed_step;
  for (const char* agent : {"a", "b"}) t.Disconnect(agent);
  t.Connect("a", "x");
  t.Connect("b", "y");
  t.state().SetReadOnly(false);
  t.Advance(absl::Seconds(1));
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kFailed);
  for (uint32_t rank : {0, 1}) t.Join("a", rank, 4, "run-2");
  for (uint32_t rank : {2, 3}) t.Join("b", rank, 4, "run-2");
  const auto start = t.Got<StartGeneration>("a");
  ASSERT_TRUE(start.has_value());
  EXPECT_EQ(start->generation.number, 2u);
  EXPECT_GE(start->generation.base_step, last + kReserveSteps);
}

}  // namespace
}  // namespace pactrain::coordinator
