// Who trains together: hello, generations, failures, restarts.
#include "coordinator/core/coordinator_state.h"

#include "base/status_matchers.h"
#include "coordinator/core/test_cluster.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using protocol::AgentHello;
using protocol::EndGeneration;
using protocol::GroupWaiting;
using protocol::JoinRefused;
using protocol::StartGeneration;
using protocol::Welcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CoordinatorState, BadOptionsAreNamed) {
  const auto create = [](const Options& options) {
    return CoordinatorState::Create(options, {"c", 1}, {},
                                    absl::ZeroDuration());
  };
  Options epoch, heartbeat, timeout, links, agents;
  epoch.epoch_steps = 0;
  heartbeat.heartbeat_interval = absl::Milliseconds(1);
  timeout.agent_timeout = absl::Seconds(1);
  links.links = {{"a", "a"}};
  agents.max_agents = 0;
  for (const auto& [options, field] :
       std::vector<std::pair<Options, std::string>>{
           {epoch, "epoch_steps"},
           {heartbeat, "heartbeat_interval"},
           {timeout, "agent_timeout"},
           {links, "links"},
           {agents, "max_agents"}}) {
    EXPECT_THAT(create(options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field)));
  }
  EXPECT_THAT(CoordinatorState::Create({}, {"c", 0}, {}, absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("term")));
}

TEST(Hello, IsAnsweredWithWelcome) {
  TestCluster t;
  t.Connect("a", "x");
  ASSERT_TRUE(t.Got<Welcome>("a").has_value());
  EXPECT_EQ(t.Got<Welcome>("a")->term, 1);
}

TEST(Hello, MustComeFirst) {
  TestCluster t;
  const Effects effects =
      t.state().OnMessage(78, protocol::Heartbeat{}, t.now());
  ASSERT_EQ(effects.closes.size(), 1);
  EXPECT_THAT(
      effects.closes[0].status,
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Hello")));
}

TEST(Hello, ComesOnceOnly) {
  TestCluster t;
  t.FormFour();
  t.Say("a", AgentHello{"a2", {9, 9}, "x", "127.0.0.1:9", "t", ""});
  EXPECT_THAT(t.Closed("a"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("twice")));
}

TEST(Hello, AnotherClusterIsRefusedInWords) {
  TestCluster t;
  AgentHello hello{"a", {1, 1}, "x", "h:1", "v", std::string(32, 'f')};
  Effects effects = t.state().OnMessage(50, hello, t.now());
  ASSERT_EQ(effects.closes.size(), 1);
  EXPECT_THAT(
      effects.closes[0].status,
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("cluster")));
}

TEST(Hello, ALiveAgentsNameIsTaken) {
  TestCluster t;
  t.Connect("a", "x");
  const Effects effects = t.state().OnMessage(
      900, AgentHello{"a", {9, 9}, "x", "127.0.0.1:9", "t", ""}, t.now());
  ASSERT_EQ(effects.closes.size(), 1);
  EXPECT_EQ(effects.closes[0].stream, 900);
  EXPECT_THAT(effects.closes[0].status,
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'a'")));
}

TEST(Hello, TheSameProcessReplacesItsOwnStream) {
  TestCluster t;
  t.FormFour();
  t.Connect("a", "x", /*same_process=*/true);
  EXPECT_TRUE(t.Closed("a").ok());
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kRunning);
}

TEST(Hello, TooManyAgentsAreRefused) {
  Options options;
  options.max_agents = 1;
  TestCluster t(options);
  t.Connect("a", "x");
  t.Connect("b", "y");
  EXPECT_THAT(t.Closed("b"), StatusIs(absl::StatusCode::kResourceExhausted,
                                      HasSubstr("1 agents")));
}

TEST(Generation, FormsWhenAllRanksAreThere) {
  TestCluster t;
  t.Connect("a", "x");
  t.Connect("b", "y");
  t.Join("a", 0, 4);
  EXPECT_EQ(t.Got<GroupWaiting>("a")->reason, "waiting for ranks 1, 2, 3 of 4");
  t.Join("a", 1, 4);
  t.Join("b", 3, 4);
  t.Join("b", 2, 4);
  const auto start = t.Got<StartGeneration>("b");
  ASSERT_TRUE(start.has_value());
  const protocol::Generation& g = start->generation;
  EXPECT_OK(protocol::CheckGeneration(g));
  EXPECT_EQ(g, t.Got<StartGeneration>("a")->generation);
  EXPECT_EQ(g.number, 1);
  EXPECT_EQ(g.base_step, 0);
  EXPECT_THAT(g.sites, ElementsAre("x", "y"));
  EXPECT_THAT(g.members[1].ranks, ElementsAre(2, 3));
  EXPECT_TRUE(g.plan.swap);
  EXPECT_EQ(g.decision.mode, protocol::Mode::kFull);
  EXPECT_EQ(g.decision.version, 1);
  ASSERT_EQ(t.records().size(), 1);
}

TEST(Generation, WaitersHearOfChangesAtTheNextTick) {
  TestCluster t;
  t.Connect("a", "x");
  t.Connect("b", "y");
  t.Join("a", 0, 3);
  t.Join("b", 2, 3);
  t.Advance(absl::Milliseconds(500));
  EXPECT_EQ(t.Got<GroupWaiting>("a")->reason, "waiting for rank 1 of 3");
}

TEST(Agents, OfASiteThatNoLinkNamesAreRefusedInWords) {
  Options options;
  options.links = {{"x", "y"}};
  auto state = CoordinatorState::Create(options, {"c", 1}, {}, {});
  ASSERT_OK(state);
  protocol::AgentHello hello{"a", {1, 1}, "x", "127.0.0.1:9", "0.1.0", ""};
  EXPECT_TRUE(state->OnMessage(1, hello, {}).closes.empty());
  hello.agent = "b";
  hello.site = "z";
  const Effects effects = state->OnMessage(2, hello, {});
  ASSERT_EQ(effects.closes.size(), 1u);
  EXPECT_THAT(effects.closes[0].status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("is in site 'z', which none of the "
                                 "coordinator's links names (x-y)")));
}

TEST(Generation, ADifferentModelIsRefusedAtAllWithBothSidesNamed) {
  TestCluster t;
  t.Connect("a", "x");
  t.Connect("b", "y");
  t.Join("a", 0, 2);
  t.model = 8;
  t.Join("b", 1, 2);
  for (const char* agent : {"a", "b"}) {
    ASSERT_TRUE(t.Got<JoinRefused>(agent).has_value());
    EXPECT_THAT(t.Got<JoinRefused>(agent)->reason, HasSubstr("site 'x'"));
    EXPECT_THAT(t.Got<JoinRefused>(agent)->reason, HasSubstr("site 'y'"));
  }
  t.Advance(absl::Seconds(1));
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kWaiting);
  t.Advance(absl::Seconds(60));
  EXPECT_TRUE(t.state().Snapshot(t.now()).groups.empty());
}

TEST(Generation, ALeavingTrainerEndsItForAll) {
  TestCluster t;
  t.FormFour();
  t.Leave("b", 3, "killed by signal 9");
  EXPECT_EQ(t.Got<EndGeneration>("a")->reason,
            "rank 3 (agent 'b', site 'y') left: killed by signal 9");
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kFailed);
  EXPECT_TRUE(t.journal().groups.at(t.group).ended);
}

TEST(Generation, AnAgentThatEndedItNamesTheCauseNotItsOwnTrainers) {
  TestCluster t;
  t.FormFour();
  t.Leave("a", 0, "agent b (site y) could not be reached", true);
  EXPECT_EQ(t.Got<EndGeneration>("b")->reason,
            "agent b (site y) could not be reached");
}

TEST(Generation, OneDetachedTrainerGivesTheOthersGrace) {
  TestCluster t;
  t.FormFour();
  t.Leave("a", 0, "detached");
  t.Advance(absl::Seconds(1));
  EXPECT_FALSE(t.Got<EndGeneration>("b").has_value());
  t.Leave("a", 1, "detached");
  t.Leave("b", 2, "detached");
  t.Leave("b", 3, "detached");
  EXPECT_EQ(t.Snapshot().reason, "all trainers detached");
}

TEST(Generation, EndsWhenOthersTrainOnAfterADetach) {
  TestCluster t;
  t.FormFour();
  t.Report("b", 1, 4);
  t.Report("a", 1, 5);  // As its agent does before it says so.
  t.Leave("a", 0, "detached");
  t.Pass(6, {"a", "b"});
  EXPECT_EQ(
      t.Got<EndGeneration>("b")->reason,
      absl::StrCat("rank 0 at agent a (site x) ended in order after step ",
                   t.Snapshot().generation->base_step + 4));
}

TEST(Generation, ThoseThatEndedInOrderAreCountedAndTheirStepIsNotInvented) {
  TestCluster t;
  t.FormFour();
  t.Leave("a", 0, "detached");
  t.Leave("b", 2, "detached");
  t.Pass(6, {"a", "b"});
  EXPECT_EQ(t.Got<EndGeneration>("b")->reason,
            "rank 0 at agent a (site x) and 1 more ended in order, after which "
            "step no agent has said to this coordinator");
}

TEST(Generation, AModesSecondsEndWithItAndNotAtTheNextTick) {
  TestCluster t;
  t.FormFour();
  t.Report("a", 1, 4);
  t.Report("b", 1, 4);
  t.Advance(absl::Seconds(1));
  for (const auto& [agent, rank] : {std::pair("a", 0u), std::pair("a", 1u),
                                    std::pair("b", 2u), std::pair("b", 3u)}) {
    t.Leave(agent, rank, "detached");
  }
  const auto at_end = t.Snapshot().account.mode_seconds;
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kEnded);
  EXPECT_GE(at_end[0], 1);  // FULL.
  const GroupSnapshot later =
      t.state().Snapshot(t.now() + absl::Seconds(5)).groups.at(0);
  EXPECT_EQ(later.account.mode_seconds, at_end);
}

TEST(Generation, ARestartedAgentEndsIt) {
  TestCluster t;
  t.FormFour();
  t.Disconnect("b");
  t.Connect("b", "y");
  EXPECT_THAT(t.Got<EndGeneration>("a")->reason, HasSubstr("agent 'b'"));
  EXPECT_THAT(t.Got<EndGeneration>("a")->reason, HasSubstr("ranks 2, 3"));
}

TEST(Generation, ABrokenStreamEndsNothing) {
  TestCluster t;
  t.FormFour();
  t.Disconnect("b");
  t.Pass(100, {"a"});
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kRunning);
  EXPECT_THAT(t.Snapshot().reason, HasSubstr("no stream from 1 agent ('b')"));
  t.Connect("b", "y", /*same_process=*/true);
  t.Rejoin("b", 2, 1);
  t.Rejoin("b", 3, 1);
  t.Pass(10, {"a", "b"});
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kRunning);
  EXPECT_FALSE(t.Got<EndGeneration>("a").has_value());
}

TEST(Generation, TrainersOfAGroupThatIsNotNamedOnANewStreamAreGone) {
  TestCluster t;
  t.FormFour();
  t.Connect("b", "y", /*same_process=*/true);
  t.Pass(3, {"a", "b"});
  EXPECT_FALSE(t.Got<EndGeneration>("a"));
  t.Pass(1, {"a", "b"});
  EXPECT_THAT(t.Got<EndGeneration>("a")->reason,
              HasSubstr("rank 2 (agent 'b', site 'y') was not named again"));
}

TEST(Generation, ASilentAgentLosesItsStream) {
  TestCluster t;
  t.FormFour();
  t.Advance(absl::Seconds(3));
  EXPECT_TRUE(t.Closed("a").ok());
  t.Say("b", protocol::Heartbeat{});
  t.Advance(absl::Milliseconds(1));
  EXPECT_THAT(t.Closed("a"), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      HasSubstr("heartbeat")));
  EXPECT_TRUE(t.Closed("b").ok());
}

TEST(Generation, ANewLaunchWaitsForTheOldTrainers) {
  TestCluster t;
  t.FormFour();
  t.Leave("b", 3, "crashed");
  t.Join("a", 0, 2, "run-2");
  t.Join("a", 1, 2, "run-2");
  EXPECT_THAT(
      t.Got<GroupWaiting>("a")->reason,
      HasSubstr("waiting for rank 2 (agent 'b', site 'y') of launch 'run-1'"));
  t.Clear();
  t.Leave("b", 2, "error");
  // Ranks 0 and 1 of the old launch were replaced at their own agent.
  ASSERT_TRUE(t.Got<StartGeneration>("a").has_value());
  EXPECT_EQ(t.Got<StartGeneration>("a")->generation.number, 2);
  EXPECT_EQ(t.Got<StartGeneration>("a")->generation.decision.version, 2);
}

TEST(Generation, ANewLaunchTakesOverWhenAllOldAgentsAreLongGone) {
  TestCluster t;
  t.FormFour();
  t.Disconnect("a");
  t.Disconnect("b");
  t.Connect("c", "z");
  t.Join("c", 0, 1, "run-2");
  t.Pass(2, {"c"});
  EXPECT_FALSE(t.Got<StartGeneration>("c").has_value());
  t.Pass(9, {"c"});
  ASSERT_TRUE(t.Got<StartGeneration>("c").has_value());
  EXPECT_EQ(t.Got<StartGeneration>("c")->generation.number, 2);
  // A zombie of the old launch is told when it comes back.
  t.Connect("a", "x", /*same_process=*/true);
  t.Rejoin("a", 0, 1);
  EXPECT_EQ(t.Got<EndGeneration>("a")->generation, 1);
}

TEST(Generation, StepsNeverGoBack) {
  TestCluster t;
  t.FormFour();
  t.Report("a", 1, 100);
  t.Report("b", 1, 101);
  t.Leave("b", 3, "crashed");
  t.Leave("b", 2, "error");
  t.Leave("a", 0, "error");
  t.Leave("a", 1, "error");
  t.Join("a", 0, 1, "run-2");
  EXPECT_EQ(t.Got<StartGeneration>("a")->generation.base_step, 101);
}

TEST(Generation, StepsAreReservedBeforeTheyAreUsedUp) {
  TestCluster t;
  t.FormFour();
  const uint64_t first = t.journal().groups.at(t.group).generation.base_step;
  for (uint64_t count = 1; count <= 3 * kReserveSteps; count += 100) {
    t.Report("a", 1, count);
    EXPECT_GT(t.journal().groups.at(t.group).reserved_step, first + count);
  }
}

TEST(Generation, ASavedSessionsStepCounts) {
  TestCluster t;
  t.resume_step = 5000;
  t.FormFour();
  EXPECT_EQ(t.Got<StartGeneration>("a")->generation.base_step, 5000);
}

TEST(Generation, GroupsDoNotInfluenceEachOther) {
  TestCluster t;
  t.FormFour();
  t.group = {"job", 1};
  t.Join("a", 0, 2);
  t.Join("a", 1, 2);
  t.Leave("a", 0, "crashed");
  const auto groups = t.state().Snapshot(t.now()).groups;
  ASSERT_EQ(groups.size(), 2);
  EXPECT_EQ(groups[0].phase, GroupPhase::kRunning);
  EXPECT_EQ(groups[1].phase, GroupPhase::kFailed);
}

TEST(Generation, sec_limits_Jobs) {
  TestCluster t;
  t.Connect("a", "x");
  t.Connect("b", "x");
  for (int i = 0; i < protocol::kMaxJobs; ++i) {
    t.group = {"job-" + std::to_string(i), 0};
    t.Join(i % 2 == 0 ? "a" : "b", 0, 1);
  }
  EXPECT_FALSE(t.Got<JoinRefused>("a").has_value());
  EXPECT_FALSE(t.Got<JoinRefused>("b").has_value());
  t.Connect("c", "x");
  t.group = {"one-more", 0};
  t.Join("c", 0, 1);
  ASSERT_TRUE(t.Got<JoinRefused>("c").has_value());
  EXPECT_THAT(t.Got<JoinRefused>("c")->reason, HasSubstr("100 jobs"));
  // Another model of a job that lives is let in.
  t.Clear();
  t.group = {"job-0", 1};
  t.Join("a", 0, 1);
  EXPECT_FALSE(t.Got<JoinRefused>("a").has_value());
}

TEST(Generation, sec_limits_JobsOfOneAgentAlone) {
  TestCluster t;
  t.Connect("evil", "x");
  const auto join = [&](const std::string& agent, const std::string& job) {
    t.Clear();
    t.group = {job, 0};
    t.Join(agent, 0, 1);  // It runs at once.
    return t.Got<JoinRefused>(agent);
  };
  for (int i = 0; i < CoordinatorState::kMaxJobsOfAgent; ++i) {
    EXPECT_FALSE(join("evil", "job-" + std::to_string(i)).has_value());
  }
  const auto refused = join("evil", "one-more");
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->reason, HasSubstr("50 jobs that one agent may hold"));
  t.Connect("honest", "x");
  EXPECT_FALSE(join("honest", "one-more").has_value());
}

// Agents that fill all places with jobs that wait for a rank that never comes.
TEST(Generation, sec_waiting_jobs_LeaveRoomForOthers) {
  TestCluster t;
  t.Connect("honest", "x");
  t.group = {"honest-first", 0};
  t.Join("honest", 0, 2);
  for (const char* evil : {"evil-1", "evil-2", "evil-3"}) {
    t.Connect(evil, "x");
    for (int i = 0; i < protocol::kMaxJobs; ++i) {
      t.group = {std::string(evil) + "-" + std::to_string(i), 0};
      t.Join(evil, 0, 2);
    }
  }
  EXPECT_FALSE(t.Got<JoinRefused>("honest").has_value());
  t.Clear();
  t.group = {"honest-second", 0};
  t.Join("honest", 0, 2);
  EXPECT_FALSE(t.Got<JoinRefused>("honest").has_value());
  EXPECT_EQ(t.state().Snapshot(t.now()).groups.size(),
            static_cast<size_t>(protocol::kMaxJobs));
  // The one of the greediest that came last is told who takes its place.
  int told = 0;
  for (const char* evil : {"evil-1", "evil-2", "evil-3"}) {
    if (const auto refused = t.Got<JoinRefused>(evil)) {
      EXPECT_THAT(refused->reason, HasSubstr("one of agent 'honest'"));
      ++told;
    }
  }
  EXPECT_EQ(told, 1);
}

TEST(Generation, sec_waiting_jobs_Expire) {
  TestCluster t;
  t.Connect("a", "x");
  t.group = {"never", 0};
  t.Join("a", 0, 2);
  const absl::Duration almost =
      t.now() + CoordinatorState::kMaxWait - absl::Seconds(30);
  while (t.now() < almost) t.Pass(20, {"a"});
  EXPECT_FALSE(t.Got<JoinRefused>("a").has_value());
  t.Pass(60, {"a"});
  ASSERT_TRUE(t.Got<JoinRefused>("a").has_value());
  EXPECT_THAT(t.Got<JoinRefused>("a")->reason,
              HasSubstr("not formed within 24h"));
  EXPECT_TRUE(t.state().Snapshot(t.now()).groups.empty());
}

TEST(Generation, sec_limits_GroupsThatEndedLongAgoAreForgotten) {
  constexpr size_t kMost = protocol::kMaxJobs * protocol::kMaxModels;
  TestCluster t;
  t.Connect("a", "x");
  for (size_t i = 0; i < kMost + 5; ++i) {
    t.group = {"job-" + std::to_string(i), 0};
    t.Join("a", 0, 1);
    t.Leave("a", 0, "detached");
    t.Clear();
  }
  EXPECT_EQ(t.state().Snapshot(t.now()).groups.size(), kMost);
  EXPECT_EQ(t.journal().groups.size(), kMost);
}

TEST(Restart, ARunningGenerationIsNotDisturbed) {
  TestCluster t;
  t.FormFour();
  t.Report("a", 1, 10);
  t.RestartCoordinator();
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kRunning);
  t.Connect("a", "x", /*same_process=*/true);
  t.Rejoin("a", 0, 1);
  t.Rejoin("a", 1, 1);
  t.Connect("b", "y", /*same_process=*/true);
  t.Rejoin("b", 2, 1);
  t.Rejoin("b", 3, 1);
  EXPECT_EQ(t.Got<Welcome>("a")->term, 2);
  EXPECT_EQ(t.Snapshot().committed_total, 0);
  t.Report("a", 1, 11);
  EXPECT_EQ(t.Snapshot().committed_total,
            0);  // Since this coordinator's start.
  t.Report("a", 1, 15);
  EXPECT_EQ(t.Snapshot().committed_total, 4);
  t.Report("b", 1, 11);
  t.Pass(10, {"a", "b"});
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kRunning);
  EXPECT_EQ(t.Snapshot().committed_count, 15);
  EXPECT_FALSE(t.Got<EndGeneration>("a").has_value());
  EXPECT_FALSE(t.Got<StartGeneration>("a").has_value());
  EXPECT_TRUE(t.records().empty());
}

TEST(Restart, BetweenLogAndTellTheGenerationIsToldLater) {
  TestCluster t;
  t.FormFour();
  t.RestartCoordinator();  // The agents have not heard of generation 1.
  t.Connect("a", "x", /*same_process=*/true);
  t.Rejoin("a", 0, /*generation=*/0);
  ASSERT_TRUE(t.Got<StartGeneration>("a").has_value());
  EXPECT_EQ(t.Got<StartGeneration>("a")->generation,
            t.journal().groups.at(t.group).generation);
  EXPECT_TRUE(t.records().empty());
}

TEST(Restart, StepsNeverGoBackThoughNobodyReports) {
  TestCluster t;
  t.FormFour();
  t.Report("a", 1, 700);
  t.RestartCoordinator();
  t.Connect("c", "x");
  t.Join("c", 0, 1, "run-2");
  t.Pass(12, {"c"});
  ASSERT_TRUE(t.Got<StartGeneration>("c").has_value());
  EXPECT_GE(t.Got<StartGeneration>("c")->generation.base_step, 700);
  EXPECT_EQ(t.Got<StartGeneration>("c")->generation.term, 2);
}

TEST(ReadOnly, NothingIsFormedOrEndedUntilTheJournalIsBack) {
  TestCluster t;
  t.FormFour();
  t.Clear();
  t.state().SetReadOnly(true);
  t.group = {"other", 0};
  t.Join("a", 0, 1);
  EXPECT_THAT(t.Got<GroupWaiting>("a")->reason, HasSubstr("journal"));
  t.group = {"job", 0};
  t.Leave("b", 3, "crashed");
  t.Advance(absl::Seconds(1));
  EXPECT_TRUE(t.records().empty());
  EXPECT_FALSE(t.Got<EndGeneration>("a").has_value());
  EXPECT_EQ(t.Snapshot().phase, GroupPhase::kRunning);
  t.state().SetReadOnly(false);
  t.Advance(absl::Seconds(1));
  EXPECT_TRUE(t.Got<EndGeneration>("a").has_value());
  EXPECT_TRUE(t.Got<StartGeneration>("a").has_value());
}

}  // namespace
}  // namespace pactrain::coordinator
