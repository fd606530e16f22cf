#include "coordinator/core/lineup.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using protocol::OnShrink;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

constexpr protocol::Digest kLineage = {5, 5};

// One after generation 5, which had four ranks.
class LineupTest : public ::testing::Test {
 protected:
  // `step` 0: new.
  void Add(const std::string& launch, uint32_t world, uint32_t rank,
           const std::string& site, uint64_t step,
           protocol::Digest lineage = kLineage) {
    AddAt({"agent-" + site, site}, launch, world, rank, step, lineage);
  }
  using Place = std::pair<std::string, std::string>;  // Agent and site.
  void AddAt(const Place& place, const std::string& launch, uint32_t world,
             uint32_t rank, uint64_t step,
             protocol::Digest lineage = kLineage) {
    Candidate candidate;
    candidate.agent = place.first;
    candidate.site = place.second;
    candidate.trainer.rank = rank;
    candidate.trainer.world_size = world;
    candidate.trainer.launch = launch;
    candidate.trainer.resume_step = step;
    if (step != 0) candidate.trainer.lineage = {lineage, step};
    for (Launch& known : waiting_) {
      if (known.name != launch) continue;
      known.by_rank[rank] = candidate;
      return;
    }
    waiting_.push_back({launch, {{rank, candidate}}});
  }
  NextLineup Next() const { return MakeNextLineup(waiting_, remains_); }
  // Whether a launch of so many newcomers is let in beside the four ranks that
  // return, all at one agent.
  bool IsLetIn(uint32_t count, const std::function<Place(uint32_t)>& place) {
    waiting_.clear();
    for (uint32_t rank : {0, 1, 2, 3}) Add("l", 4, rank, "a", 70);
    for (uint32_t i = 0; i < count; ++i) AddAt(place(i), "m", count, i, 0);
    const size_t admitted = Next().lineup->trainers.size();
    EXPECT_TRUE(admitted == 4 || admitted == 4 + count) << admitted;
    return admitted != 4;
  }
  static std::vector<std::string> Order(const Lineup& lineup) {
    std::vector<std::string> order;
    for (const Candidate& c : lineup.trainers) {
      order.push_back(c.site + std::to_string(c.trainer.rank));
    }
    return order;
  }

  std::vector<Launch> waiting_;
  Remains remains_{5, kLineage, OnShrink::kPause, 4, 0, 0, 0, {}};
};

TEST_F(LineupTest, PauseWaitsForAsManyAsBefore) {
  for (uint32_t rank : {0, 1, 2}) Add("l", 4, rank, "a", 70);
  EXPECT_FALSE(Next().lineup);
  EXPECT_THAT(Next().waiting, HasSubstr("3 ranks are here"));
  Add("l", 4, 3, "b", 0);
  ASSERT_TRUE(Next().lineup);
  EXPECT_THAT(Next().lineup->donor, Optional(0u));
  EXPECT_THAT(Next().lineup->needs_state, ElementsAre(3));
}

// They notice at their next step, which may be long in coming.
TEST_F(LineupTest, WhoLivesIsWaitedForAsLongAsItTakes) {
  for (const OnShrink on_shrink : {OnShrink::kPause, OnShrink::kContinue}) {
    remains_.on_shrink = on_shrink;
    for (uint32_t rank : {0, 1}) Add("l", 4, rank, "a", 70);
    for (uint32_t rank : {0, 1}) Add("m", 2, rank, "c", 0);
    remains_.alive = 2;
    EXPECT_FALSE(Next().lineup);
    EXPECT_THAT(Next().waiting, HasSubstr("2 live and come with"));
    EXPECT_TRUE(IsAwaited(remains_));
    remains_.alive = 0;
    EXPECT_TRUE(Next().lineup);
  }
}

TEST_F(LineupTest, WhoseAgentIsAwayIsWaitedForALittle) {
  remains_.on_shrink = OnShrink::kContinue;
  Add("l", 4, 0, "a", 70);
  remains_.unknown = 3;
  EXPECT_FALSE(Next().lineup);
  EXPECT_THAT(Next().waiting, HasSubstr("3 may come when"));
  remains_.unknown = 0;
  EXPECT_TRUE(Next().lineup);
  EXPECT_FALSE(IsAwaited(remains_));
}

TEST_F(LineupTest, ContinueGoesOnWithThoseThatAreLeft) {
  remains_.on_shrink = OnShrink::kContinue;
  Add("l", 4, 0, "a", 70);
  Add("l", 4, 3, "b", 70);
  ASSERT_TRUE(Next().lineup);
  EXPECT_THAT(Order(*Next().lineup), ElementsAre("a0", "b3"));
  EXPECT_THAT(Next().lineup->needs_state, IsEmpty());
}

TEST_F(LineupTest, NobodyHasToTakeThePlaceOfOneThatDetached) {
  for (uint32_t rank : {0, 1, 2}) Add("l", 4, rank, "a", 70);
  remains_.detached = 1;
  EXPECT_TRUE(Next().lineup);
}

TEST_F(LineupTest, ALaunchIsCompleteWithoutThoseThatDetached) {
  remains_.ranks = 2;
  remains_.detached_of["l"] = {0, 1};
  Add("l", 4, 2, "a", 70);
  Add("l", 4, 3, "a", 0);
  ASSERT_TRUE(Next().lineup);
  EXPECT_EQ(Next().lineup->trainers.size(), 2u);
}

TEST_F(LineupTest, WhoHasComeFarthestGivesItsState) {
  Add("l", 4, 0, "a", 70);
  Add("l", 4, 1, "a", 71);
  Add("l", 4, 2, "b", 71);
  Add("l", 4, 3, "b", 70);
  ASSERT_TRUE(Next().lineup);
  EXPECT_THAT(Next().lineup->donor, Optional(1u));
  EXPECT_THAT(Next().lineup->needs_state, ElementsAre(0, 3));
  EXPECT_EQ(Next().lineup->next_step, 71u);
}

TEST_F(LineupTest, TheStateOfAnotherLineageDoesNotCount) {
  for (uint32_t rank : {0, 1, 2}) Add("l", 4, rank, "a", 70);
  Add("l", 4, 3, "b", 900, /*lineage=*/{4, 4});
  ASSERT_TRUE(Next().lineup);
  EXPECT_THAT(Next().lineup->donor, Optional(0u));
  EXPECT_THAT(Next().lineup->needs_state, ElementsAre(3));
  EXPECT_EQ(Next().lineup->next_step, 70u);
}

TEST_F(LineupTest, ALaunchJoinsWholeOrNotAtAll) {
  for (uint32_t rank : {0, 1, 2, 3}) Add("l", 4, rank, "a", 70);
  Add("m", 2, 0, "c", 0);
  ASSERT_TRUE(Next().lineup);
  EXPECT_EQ(Next().lineup->trainers.size(), 4u);
  Add("m", 2, 1, "c", 0);
  ASSERT_TRUE(Next().lineup);
  // Ranks 0 and 1 are asked for twice: by site, then.
  EXPECT_THAT(Order(*Next().lineup),
              ElementsAre("a0", "a1", "a2", "a3", "c0", "c1"));
  EXPECT_THAT(Next().lineup->needs_state, ElementsAre(4, 5));
}

// A launch for which there is no room waits.
TEST_F(LineupTest, sec_limits_TrainersOfAnAgentAreOfAllLaunches) {
  const auto beside = [](uint32_t) { return Place{"agent-a", "a"}; };
  constexpr uint32_t kRoom = protocol::kMaxTrainersPerAgent - 4;
  EXPECT_TRUE(IsLetIn(kRoom, beside));
  EXPECT_FALSE(IsLetIn(kRoom + 1, beside));
}

TEST_F(LineupTest, sec_limits_SitesAreOfAllLaunches) {
  const auto apart = [](uint32_t i) {
    return Place{"agent-" + std::to_string(i), "site-" + std::to_string(i)};
  };
  EXPECT_TRUE(IsLetIn(protocol::kMaxSites - 1, apart));
  EXPECT_FALSE(IsLetIn(protocol::kMaxSites, apart));
}

TEST_F(LineupTest, sec_limits_AgentsAreOfAllLaunches) {
  const auto near = [](uint32_t i) {
    return Place{"agent-" + std::to_string(i), "a"};
  };
  EXPECT_TRUE(IsLetIn(protocol::kMaxAgents - 1, near));
  EXPECT_FALSE(IsLetIn(protocol::kMaxAgents, near));
}

TEST_F(LineupTest, sec_limits_RanksAreOfAllLaunches) {
  const auto packed = [](uint32_t i) {
    return Place{"agent-" + std::to_string(i / 60), "a"};
  };
  EXPECT_TRUE(IsLetIn(protocol::kMaxRanks - 4, packed));
  EXPECT_FALSE(IsLetIn(protocol::kMaxRanks - 3, packed));
}

TEST_F(LineupTest, ANewJobHasNoDonor) {
  Add("l", 2, 0, "a", 0);
  Add("l", 2, 1, "b", 0);
  const Lineup lineup = LineupOf(waiting_[0]);
  EXPECT_FALSE(lineup.donor);
  EXPECT_THAT(Order(lineup), ElementsAre("a0", "b1"));
  EXPECT_FALSE(NewestReturned(waiting_, kLineage));
}

}  // namespace
}  // namespace pactrain::coordinator
