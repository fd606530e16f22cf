// Who is lost, and how a job ended, as page, metrics and alerts have it.
#include "coordinator/core/test_cluster.h"
#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Of a job that a fault ended nothing more was said, and no alert came.
TEST(LostAgents, AreLostAlsoAfterTheJobEnded) {
  TestCluster t;
  t.FormFour();
  EXPECT_THAT(t.Snapshot().lost_agents, IsEmpty());
  t.Disconnect("b");
  EXPECT_THAT(t.Snapshot().lost_agents, ElementsAre("b"));
  t.Leave("a", 0, "agent b (site y) is lost", /*generation_ended=*/true);
  t.Leave("a", 1, "agent b (site y) is lost", /*generation_ended=*/true);
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kFailed);
  EXPECT_EQ(t.Snapshot().reason, "agent b (site y) is lost");
  EXPECT_THAT(t.Snapshot().lost_agents, ElementsAre("b"));
  t.Advance(absl::Hours(3));
  EXPECT_GE(t.Snapshot().ended_seconds, 3 * 3600);
  EXPECT_THAT(t.Snapshot().lost_agents, ElementsAre("b"));
  t.Disconnect("a");
  EXPECT_THAT(t.Snapshot().lost_agents, ElementsAre("b"))
      << "the trainers of a have left";
  t.Connect("b", "y");
  EXPECT_THAT(t.Snapshot().lost_agents, IsEmpty());
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kFailed);
}

TEST(LostAgents, AreReplacedByTheNextGeneration) {
  TestCluster t;
  t.FormFour();
  t.Disconnect("b");
  t.Leave("a", 0, "agent b (site y) is lost", true);
  t.Leave("a", 1, "agent b (site y) is lost", true);
  t.Pass(60, {"a"});
  t.Connect("c", "z");
  for (uint32_t rank : {0, 1}) t.Join("a", rank, 4, "run-2");
  EXPECT_THAT(t.Snapshot().lost_agents, ElementsAre("b"));
  for (uint32_t rank : {2, 3}) t.Join("c", rank, 4, "run-2");
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kRunning);
  EXPECT_THAT(t.Snapshot().lost_agents, IsEmpty());
  EXPECT_EQ(t.Snapshot().ended_seconds, std::nullopt);
}

using LostOfElasticJob = RegroupTest;

TEST_F(LostOfElasticJob, AreLostWhileTheOthersWaitForThem) {
  Start(protocol::OnShrink::kPause);
  t_.Disconnect("b");
  EndAt("a", {0, 1}, 7);
  t_.Pass(3, {"a"});
  EXPECT_EQ(t_.Snapshot().phase, GroupPhase::kWaiting);
  EXPECT_THAT(t_.Snapshot().lost_agents, ElementsAre("b"));
  EXPECT_THAT(t_.Snapshot().reason,
              HasSubstr("may come when their agent is back: rank 2 (agent 'b', "
                        "site 'y')"));
}

TEST(LostAgents, NobodyIsLostWhoHasDoneHisPart) {
  TestCluster t;
  t.FormFour();
  for (uint32_t rank : {0, 1}) t.Leave("a", rank, "detached");
  for (uint32_t rank : {2, 3}) t.Leave("b", rank, "detached");
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kEnded);
  t.Disconnect("b");
  EXPECT_THAT(t.Snapshot().lost_agents, IsEmpty());
  t.RestartCoordinator();
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kEnded);
  EXPECT_THAT(t.Snapshot().lost_agents, IsEmpty());
}

TEST(Waits, WhoHasNotSubmittedIsNamedUntilTheStepIsCommitted) {
  TestCluster t;
  t.FormFour();
  t.Report("b", 1, 7);
  protocol::StepReport report;
  report.group = t.group;
  report.generation = 1;
  report.decision_version = 1;
  report.committed_step = report.committed_count = 7;
  report.waits_for = "agent b (site y): rank 2 has not submitted bucket 0";
  t.Say("a", report);
  EXPECT_EQ(t.Snapshot().waits_for, report.waits_for);
  EXPECT_THAT(t.Snapshot().reason,
              HasSubstr("the open step waits: " + report.waits_for));
  // Where one trainer stands, others may hang by it, and only theirs be named.
  report.waits_for = "agent a (site x): rank 0 has not submitted bucket 0";
  t.Say("b", report);
  EXPECT_EQ(t.Snapshot().waits_for,
            "agent a (site x): rank 0 has not submitted bucket 0, and agent b "
            "(site y): rank 2 has not submitted bucket 0");
  t.Report("b", 1, 8);
  EXPECT_EQ(t.Snapshot().waits_for, "") << "what a said is of a step before";
}

}  // namespace
}  // namespace pactrain::coordinator
