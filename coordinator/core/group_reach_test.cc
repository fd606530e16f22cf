// Newcomers that nobody can reach, or that can reach nobody.
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::EndGeneration;
using protocol::JoinRefused;
using protocol::OnShrink;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kWhy[] = "agent c (site z) could not be reached from agent a";

class GroupReachTest : public RegroupTest {
 protected:
  // Agent c comes with two ranks, and all are in generation 2.
  void Joins(OnShrink on_shrink, const std::string& launch = "run-2") {
    Start(on_shrink);
    t_.Connect("c", "z");
    for (uint32_t rank : {0, 1}) t_.Join("c", rank, 2, launch);
    EndAt("a", {0, 1}, 7);
    EndAt("b", {2, 3}, 7);
    ASSERT_EQ(Newest().number, 2u);
    ASSERT_EQ(Newest().world_size, 6u);
    t_.Clear();
  }
  void Ends(const std::string& agent, const std::vector<uint32_t>& ranks,
            const std::vector<std::string>& unreached) {
    for (uint32_t rank : ranks) t_.Leave(agent, rank, kWhy, true, unreached);
  }
  void OthersReturn() {
    for (uint32_t rank : {0, 1}) Return("a", rank, 7, 2);
    for (uint32_t rank : {2, 3}) Return("b", rank, 7, 2);
  }
  // As newcomers do that still lack the state.
  void ComesAgain() {
    t_.again = true;
    for (uint32_t rank : {0, 1}) t_.Join("c", rank, 2, "run-2");
    t_.again = false;
  }
};

TEST_F(GroupReachTest, TheOthersGoOnWithoutItAndItIsToldWhy) {
  Joins(OnShrink::kPause);
  Ends("a", {0, 1}, {"c"});
  Ends("b", {2, 3}, {});
  Ends("c", {0, 1}, {"a"});
  OthersReturn();
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().world_size, 4u);
  ComesAgain();
  ASSERT_TRUE(t_.Got<JoinRefused>("c"));
  EXPECT_THAT(t_.Got<JoinRefused>("c")->reason,
              AllOf(HasSubstr(kWhy),
                    HasSubstr("launches with a newcomer at agent 'c' are kept "
                              "out of this job for 1m"),
                    HasSubstr("pactrain doctor")));
  EXPECT_EQ(Newest().number, 3u);
}

TEST_F(GroupReachTest, OneThatReachesNobodyIsKeptOutToo) {
  Joins(OnShrink::kContinue);
  Ends("c", {0, 1}, {"a", "b"});
  ComesAgain();
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
  Ends("a", {0, 1}, {});
  Ends("b", {2, 3}, {});
  OthersReturn();
  EXPECT_EQ(Newest().world_size, 4u);
}

// Of an agent that did not reach it the word comes late.
TEST_F(GroupReachTest, OneThatWaitsAlreadyIsRefused) {
  Joins(OnShrink::kPause);
  Ends("c", {0, 1}, {});
  ComesAgain();
  EXPECT_FALSE(t_.Got<JoinRefused>("c"));
  Ends("a", {0, 1}, {"c"});
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
  Ends("b", {2, 3}, {"c"});
  OthersReturn();
  EXPECT_EQ(Newest().world_size, 4u);
}

TEST_F(GroupReachTest, AfterAWhileItIsTriedAgain) {
  Joins(OnShrink::kPause);
  Ends("a", {0, 1}, {"c"});
  Ends("b", {2, 3}, {"c"});
  OthersReturn();
  t_.Pass(59, {"a", "b", "c"});
  ComesAgain();
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
  t_.Pass(2, {"a", "b", "c"});
  t_.Clear();
  ComesAgain();
  EXPECT_FALSE(t_.Got<JoinRefused>("c"));
  EXPECT_TRUE(t_.journal().groups.at(t_.group).ended);
}

TEST_F(GroupReachTest, TwoUnreachableLaunchesAreBothKeptOut) {
  Start(OnShrink::kPause);
  for (const char* name : {"c", "d"}) {
    t_.Connect(name, "z");
    t_.Join(name, 0, 1, std::string("of ") + name);
  }
  EndAt("a", {0, 1}, 7);
  EndAt("b", {2, 3}, 7);
  ASSERT_EQ(Newest().world_size, 6u);
  Ends("a", {0, 1}, {"c", "d"});
  Ends("b", {2, 3}, {"c", "d"});
  for (const char* name : {"c", "d"}) {
    t_.Join(name, 0, 1, std::string("of ") + name);
    EXPECT_TRUE(t_.Got<JoinRefused>(name)) << name;
  }
  OthersReturn();
  EXPECT_EQ(Newest().world_size, 4u);
}

// Where one list of sites names all of them, a site that is started again has
// the name of the launch that runs.
TEST_F(GroupReachTest, ThoseOfTheSameLaunchThatTrainAreNotKeptOut) {
  Start(OnShrink::kContinue);
  LoseRankThree();
  ASSERT_EQ(Newest().world_size, 3u);
  t_.Report("a", 1, 5);
  t_.Connect("c", "y");
  t_.Join("c", 3, 4);  // Of run-1, at another agent.
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "run-1 joins", true);
  t_.Leave("b", 2, "run-1 joins", true);
  for (uint32_t rank : {0, 1}) Return("a", rank, 900, 2);
  Return("b", 2, 900, 2);
  ASSERT_EQ(Newest().number, 3u);
  ASSERT_EQ(Newest().world_size, 4u);
  Ends("a", {0, 1}, {"c"});
  t_.Leave("b", 2, kWhy, true);
  for (uint32_t rank : {0, 1}) Return("a", rank, 900, 3);
  Return("b", 2, 900, 3);
  EXPECT_EQ(Newest().number, 4u);
  EXPECT_EQ(Newest().world_size, 3u);
  t_.Join("c", 3, 4);
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
}

// The network between them broke; nobody is a newcomer.
TEST_F(GroupReachTest, ThoseThatHaveCommittedTogetherAreNotKeptOut) {
  Joins(OnShrink::kPause);
  t_.Report("a", 1, 3);
  Ends("a", {0, 1}, {});
  Ends("b", {2, 3}, {});
  Ends("c", {0, 1}, {});
  OthersReturn();
  for (uint32_t rank : {0, 1}) Return("c", rank, 7, 2, 2, "run-2");
  ASSERT_EQ(Newest().number, 3u);
  Ends("a", {0, 1}, {"c"});
  Ends("b", {2, 3}, {"a"});
  Ends("c", {0, 1}, {"a"});
  for (uint32_t rank : {0, 1}) Return("a", rank, 7, 3);
  for (uint32_t rank : {2, 3}) Return("b", rank, 7, 3);
  for (uint32_t rank : {0, 1}) Return("c", rank, 7, 3, 2, "run-2");
  EXPECT_EQ(Newest().number, 4u);
  EXPECT_EQ(Newest().world_size, 6u);
  EXPECT_FALSE(t_.Got<JoinRefused>("a"));
  EXPECT_FALSE(t_.Got<JoinRefused>("c"));
}

TEST_F(GroupReachTest, InAJobThatNeverTrainedNobodyIsKeptOut) {
  Start(OnShrink::kPause);
  Ends("a", {0, 1}, {"b"});
  Ends("b", {2, 3}, {"a"});
  for (uint32_t rank : {0, 1}) Return("a", rank, 0);
  for (uint32_t rank : {2, 3}) Return("b", rank, 0);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 4u);
}

TEST_F(GroupReachTest, ARestartedCoordinatorKnowsWhoTrainedAndWhoIsKeptOut) {
  Joins(OnShrink::kPause);
  const auto connect_all = [&] {
    t_.RestartCoordinator();
    t_.Connect("a", "x", /*same_process=*/true);
    t_.Connect("b", "y", /*same_process=*/true);
    t_.Connect("c", "z", /*same_process=*/true);
  };
  connect_all();
  for (uint32_t rank : {0, 1}) t_.Rejoin("a", rank, 2);
  for (uint32_t rank : {2, 3}) t_.Rejoin("b", rank, 2);
  for (uint32_t rank : {0, 1}) t_.Rejoin("c", rank, 2);
  Ends("a", {0, 1}, {"c"});
  Ends("b", {2, 3}, {});
  t_.Advance(absl::Milliseconds(100));
  EXPECT_THAT(t_.journal().groups.at(t_.group).detached_ranks,
              ElementsAre(4, 5));
  connect_all();
  OthersReturn();
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().world_size, 4u);
}

// A job that has trained: a step is committed before they come.
class GroupReachLaterTest : public GroupReachTest {
 protected:
  // `where`: the agents of the launch's ranks.
  void LaunchAt(const std::string& launch,
                const std::vector<std::string>& where) {
    for (uint32_t rank = 0; rank < where.size(); ++rank) {
      t_.Join(where[rank], rank, static_cast<uint32_t>(where.size()), launch);
    }
  }
  // Of rank `rank` of that launch, as one that still lacks the state.
  void Again(const std::string& launch, const std::string& agent, uint32_t rank,
             uint32_t world) {
    t_.again = true;
    t_.Join(agent, rank, world, launch);
    t_.again = false;
  }
  void Begins() {
    Start(OnShrink::kPause);
    t_.Report("a", 1, 3);
    for (const char* name : {"c", "d"}) t_.Connect(name, "z");
  }
  void Meets(uint32_t ranks) {
    EndAt("a", {0, 1}, 7);
    EndAt("b", {2, 3}, 7);
    ASSERT_EQ(Newest().number, 2u);
    ASSERT_EQ(Newest().world_size, ranks);
    t_.Clear();
  }
};

TEST_F(GroupReachLaterTest, AGoodNewcomerBesideABadOneGetsIn) {
  for (const bool good_first : {true, false}) {
    t_ = TestCluster();
    Begins();
    LaunchAt("bad", {"c"});
    LaunchAt("good", {"d"});
    Meets(6);
    if (good_first) Ends("d", {0}, {"c"});
    Ends("c", {0}, {"a", "b", "d"});
    Ends("a", {0, 1}, {"c"});
    Ends("b", {2, 3}, {"c"});
    if (!good_first) Ends("d", {0}, {"c"});
    OthersReturn();
    Again("good", "d", 0, 1);
    Again("bad", "c", 0, 1);
    EXPECT_TRUE(t_.Got<JoinRefused>("c"));
    EXPECT_FALSE(t_.Got<JoinRefused>("d"));
    EXPECT_EQ(Newest().number, 3u);
    EXPECT_EQ(Newest().world_size, 5u);
  }
}

TEST_F(GroupReachLaterTest, TwoThatReachAllButEachOtherAreBothKeptOut) {
  Begins();
  LaunchAt("one", {"c"});
  LaunchAt("two", {"d"});
  Meets(6);
  Ends("c", {0}, {"d"});
  Ends("d", {0}, {});
  Ends("a", {0, 1}, {});
  Ends("b", {2, 3}, {});
  Again("one", "c", 0, 1);
  Again("two", "d", 0, 1);
  EXPECT_FALSE(t_.Got<JoinRefused>("c"));
  OthersReturn();
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
  EXPECT_TRUE(t_.Got<JoinRefused>("d"));
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().world_size, 4u);
}

// With pause nobody has to come in the place of the one at b.
TEST_F(GroupReachLaterTest, ALaunchAtTwoAgentsIsKeptOutAsAWhole) {
  for (const bool waits_already : {true, false}) {
    t_ = TestCluster();
    Begins();
    LaunchAt("split", {"b", "c"});
    Meets(6);
    Ends("b", {2, 3, 0}, {});
    if (waits_already) Again("split", "b", 0, 2);
    Ends("a", {0, 1}, {"c"});
    Ends("c", {1}, {"a", "b"});
    OthersReturn();
    if (!waits_already) Again("split", "b", 0, 2);
    EXPECT_TRUE(t_.Got<JoinRefused>("b"));
    EXPECT_EQ(Newest().number, 3u);
    EXPECT_EQ(Newest().world_size, 4u);
  }
}

TEST_F(GroupReachLaterTest, AnotherLaunchAtTheSameAgentIsKeptOutToo) {
  Begins();
  LaunchAt("first", {"c"});
  Meets(5);
  Ends("a", {0, 1}, {"c"});
  Ends("b", {2, 3}, {"c"});
  Ends("c", {0}, {"a"});
  OthersReturn();
  t_.Clear();
  LaunchAt("second", {"d", "c"});  // As a launcher that starts it again.
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
  EXPECT_TRUE(t_.Got<JoinRefused>("d"));
  EXPECT_FALSE(t_.Got<EndGeneration>("a"));
  t_.Clear();
  LaunchAt("third", {"d"});
  EXPECT_TRUE(t_.Got<EndGeneration>("a"));
}

// As by its scheduler, while it stalls.
TEST_F(GroupReachLaterTest, PauseNeedsNobodyForANewcomerThatNeverTrained) {
  Begins();
  LaunchAt("first", {"c"});
  Meets(5);
  t_.Leave("c", 0, "killed by signal 9");
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, kWhy, true);
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, kWhy, true);
  OthersReturn();
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().world_size, 4u);
}

TEST_F(GroupReachLaterTest, PauseNeedsOneInThePlaceOfANewcomerThatTrained) {
  Begins();
  LaunchAt("first", {"c"});
  Meets(5);
  t_.Report("a", 1, 2);
  t_.Leave("c", 0, "killed by signal 9");
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, kWhy, true);
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, kWhy, true);
  OthersReturn();
  EXPECT_EQ(Newest().number, 2u);
  t_.Join("c", 0, 1, "first");
  EXPECT_EQ(Newest().number, 3u);
}

// Who died has to be replaced, by somebody who can be reached.
TEST_F(GroupReachLaterTest, PauseWaitsOnWhenTheReplacementIsKeptOut) {
  Begins();
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "killed by signal 9");
  EndAt("a", {0, 1}, 7);
  LaunchAt("instead", {"c", "c"});
  ASSERT_EQ(Newest().number, 2u);
  Ends("a", {0, 1}, {"c"});
  Ends("c", {0, 1}, {"a"});
  for (uint32_t rank : {0, 1}) Return("a", rank, 7, 2);
  for (uint32_t rank : {0, 1}) Again("instead", "c", rank, 2);
  EXPECT_TRUE(t_.Got<JoinRefused>("c"));
  t_.Pass(20, {"a", "b", "c", "d"});
  EXPECT_EQ(Newest().number, 2u);
  LaunchAt("at last", {"d", "d"});
  EXPECT_EQ(Newest().number, 3u);
  EXPECT_EQ(Newest().world_size, 4u);
}

}  // namespace
}  // namespace pactrain::coordinator
