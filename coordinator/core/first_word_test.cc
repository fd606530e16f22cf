// What a trainer has said once that it holds counts until the next generation:
// neither waiting longer nor another word nor another name makes it untrue.
#include <cstdint>
#include <vector>

#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::JoinRefused;
using protocol::OnShrink;
using ::testing::HasSubstr;

class FirstWordTest : public LyingMemberTest {
 protected:
  void Say(const std::string& agent, const std::vector<uint32_t>& ranks,
           uint64_t parameters) {
    t_.parameters = {parameters, parameters};
    EndAt(agent, ranks, 7);
    t_.parameters = {};
  }
  void GiveUp(const std::string& agent, const std::vector<uint32_t>& ranks) {
    for (const uint32_t rank : ranks) {
      t_.Leave(agent, rank, "closed its connection");
    }
  }
  void SayInstead(uint64_t next, uint64_t parameters) {
    for (const uint32_t rank : {2, 3}) t_.Leave("b", rank, "again", true);
    t_.parameters = {parameters, parameters};
    for (const uint32_t rank : {2, 3}) Return("b", rank, next);
    t_.parameters = {};
    t_.Pass(15, {"a", "b"});
  }
  void EvictWhoIsAway(const std::string& agent) {
    auto effects = t_.state().Evict("agent/" + agent, "ann", t_.now());
    ASSERT_TRUE(effects.ok()) << effects.status();
    t_.Act(std::move(effects->effects));
    t_.Pass(15, {"a"});
  }
};

TEST_F(FirstWordTest, AWordIsNotTakenBackByHidingTheDigest) {
  Differ();
  GiveUp("a", {0, 1});
  SayInstead(7, 0);
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(t_.Got<JoinRefused>("b")->reason, HasSubstr("said before"));
}

TEST_F(FirstWordTest, NorByMoreStepsThanAtFirst) {
  Differ();
  GiveUp("a", {0, 1});
  SayInstead(8, 6);
  EXPECT_EQ(Newest().number, 1u);
}

TEST_F(FirstWordTest, NorByFewer) {
  Differ();
  GiveUp("a", {0, 1});
  SayInstead(6, 6);
  EXPECT_EQ(Newest().number, 1u);
}

TEST_F(FirstWordTest, NorWhileTheOthersWait) {
  Differ();
  SayInstead(8, 6);
  EXPECT_EQ(Newest().number, 1u);
}

TEST_F(FirstWordTest, WhoGaveUpBeforeAllWereThereHasSpoken) {
  Start(OnShrink::kContinue);
  Say("a", {0, 1}, 5);
  GiveUp("a", {0, 1});
  Say("b", {2, 3}, 6);
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(Waiting("b"), HasSubstr("agent 'a'"));
}

TEST_F(FirstWordTest, WhoIsRefutedIsSoAgainOnceTheOthersHaveGivenUp) {
  StartThree();
  ComeBackWith("a", 5);
  GiveUp("a", {0, 1});
  ComeBackWith("c", 5);
  GiveUp("c", {3});
  ComeBackWith("b", 6);
  t_.Pass(15, {"a", "b", "c"});
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(t_.Got<JoinRefused>("b")->reason, HasSubstr("agent 'a', 'c'"));
}

TEST_F(FirstWordTest, TheSameWordIsTakenAgainAndADigestWhereNoneWas) {
  StartThree();
  ComeBackWith("a", 5);
  t_.Disconnect("b");
  t_.Connect("b", "y", true);
  ComeBack("b", 7);  // As an agent of the release before.
  for (const char* agent : {"b", "a", "c"}) ComeBackWith(agent, 5);
  t_.Pass(3, {"a", "b", "c"});
  for (const char* agent : {"a", "b", "c"}) {
    EXPECT_FALSE(t_.Got<JoinRefused>(agent)) << agent;
  }
  EXPECT_EQ(Newest().number, 2u);
}

TEST_F(FirstWordTest, AStragglersWordWhileOthersTrainIsTakenAgain) {
  Start(OnShrink::kContinue);
  t_.Leave("b", 3, "rank 3 is late", true, {}, true);
  Say("a", {0, 1}, 5);
  Say("b", {2}, 5);
  ASSERT_EQ(Newest().number, 2u);
  t_.parameters = {4, 4};
  Return("b", 3, 5);
  t_.parameters = {5, 5};
  EndAt("a", {0, 1}, 9);
  EndAt("b", {2}, 9);
  t_.Pass(3, {"a", "b"});
  EXPECT_EQ(Newest().world_size, 4u);
}

TEST_F(FirstWordTest, AnAgentWithAnotherNameIsNoSecondOne) {
  Differ();
  t_.Leave("b", 3, "killed by signal 9");
  t_.Disconnect("b");
  t_.Connect("b2", "y");
  t_.parameters = {6, 6};
  Return("b2", 2, 7);
  t_.parameters = {};
  t_.Pass(15, {"a", "b2"});
  EXPECT_FALSE(t_.Got<JoinRefused>("a"));
  EXPECT_EQ(Newest().number, 1u);
}

TEST_F(FirstWordTest, WhoIsLongAwayCanBeEvicted) {
  Differ();
  t_.Disconnect("b");
  t_.Connect("b2", "y");
  t_.parameters = {6, 6};
  for (const uint32_t rank : {2, 3}) Return("b2", rank, 7);
  t_.parameters = {};
  t_.Disconnect("b2");
  t_.Pass(30, {"a"});
  ASSERT_THAT(Waiting("a"), HasSubstr("agent 'b2'"));
  EvictWhoIsAway("b2");
  EXPECT_EQ(Newest().number, 2u) << Waiting("a");
}

TEST_F(FirstWordTest, RanksOfOneAgentAreChosenAmongByEndingThem) {
  t_.on_shrink = OnShrink::kContinue;
  t_.Connect("a", "x");
  for (const uint32_t rank : {0, 1}) t_.Join("a", rank, 2);
  for (const uint32_t rank : {0, 1}) t_.Leave("a", rank, "it ended", true);
  for (const uint32_t rank : {0, 1}) {
    t_.parameters = {5 + rank, 5};
    Return("a", rank, 7, 1, 2);
  }
  t_.parameters = {};
  t_.Advance(absl::Seconds(1));
  ASSERT_EQ(Newest().number, 1u);
  EXPECT_THAT(Waiting("a"), HasSubstr("end the wrong ones"));
  GiveUp("a", {1});
  t_.Pass(3, {"a"});
  EXPECT_EQ(Newest().number, 2u);
}

TEST_F(FirstWordTest, WhoLeavesIsKnownByWhatItSaidAsItAttachedAgain) {
  StartThree();
  for (const char* agent : {"a", "b", "c"}) LastWord(agent, 8);
  const uint64_t next = Newest().base_step + 7;
  const auto again = [&](const char* agent, uint32_t rank,
                         uint64_t parameters) {
    t_.Leave(agent, rank, "it ended", true);
    t_.parameters = {parameters, 5};
    t_.lineage = {t_.LineageOf(1), 7};
    t_.resume_step = next;
    t_.Join(agent, rank, 4);
  };
  for (const uint32_t rank : {0, 1}) again("a", rank, 5);
  again("c", 3, 6);
  t_.Leave("c", 3, "detached");
  again("b", 2, 5);
  t_.Pass(15, {"a", "b", "c"});
  for (const char* agent : {"a", "b"}) {
    EXPECT_FALSE(t_.Got<JoinRefused>(agent)) << agent;
  }
}

TEST_F(FirstWordTest, OfManyOnEachSideAllAreNamed) {
  t_.on_shrink = OnShrink::kContinue;
  const std::vector<std::string> agents = {"a", "b", "c", "d"};
  for (const std::string& agent : agents) t_.Connect(agent, agent);
  for (uint32_t rank = 0; rank < 4; ++rank) t_.Join(agents[rank], rank, 4);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    t_.Leave(agents[rank], rank, "it ended", true);
  }
  for (uint32_t rank = 0; rank < 4; ++rank) {
    t_.parameters = {rank < 2 ? 5u : 6u, 5};
    Return(agents[rank], rank, 7);
  }
  t_.Advance(absl::Seconds(1));
  EXPECT_THAT(Waiting("a"), HasSubstr("agent 'a', 'b'"));
  EXPECT_THAT(Waiting("a"), HasSubstr("agent 'c', 'd'"));
}

// A job that the journal does not know, so nothing is proven.
TEST_F(FirstWordTest, AnothersIdTakesNoWordBack) {
  t_.on_shrink = OnShrink::kPause;
  for (const char* agent : {"a", "x"}) t_.Connect(agent, agent);
  t_.proven = false;
  t_.parameters = {5, 5};
  Return("a", 0, 7, 1, 2);
  t_.parameters = {6, 6};
  Return("x", 1, 7, 1, 2);
  t_.Pass(3, {"a", "x"});
  ASSERT_THAT(Waiting("x"), HasSubstr("hold other parameters"));
  protocol::Trainer taken = t_.TrainerOf("a", 0);
  GiveUp("a", {0});
  ++taken.attach_id.lo;
  taken.parameters = {6, 6};
  t_.Say("x", protocol::TrainerJoined{t_.group, taken, 0, false});
  t_.Pass(3, {"a", "x"});
  EXPECT_EQ(t_.journal().groups.count(t_.group), 0u);
}

}  // namespace
}  // namespace pactrain::coordinator
