#include "agent/exchange/schedule.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using protocol::Generation;

// Sites of 2, 1 and 3 agents in a chain with the middle as the root.
Generation Chain() {
  Generation g;
  g.sites = {"a", "b", "c"};
  for (const char* site : {"a", "a", "b", "c", "c", "c"}) {
    protocol::Member member;
    member.agent = "agent-" + std::to_string(g.members.size());
    member.site = site;
    g.members.push_back(member);
  }
  g.plan.trees = {{{1, 1, 1}}};
  return g;
}

TEST(Schedule, PiecesCoverTheBucket) {
  for (auto codec : {protocol::Codec::kFp32, protocol::Codec::kLevels7}) {
    const Frames frames(codec);
    for (uint64_t elements : {0u, 1u, 2048u, 2049u, 65536u, 65537u, 1000003u}) {
      uint64_t sum = 0;
      for (uint32_t c = 0; c < ChunkCount(elements); ++c) {
        const uint32_t in_chunk = ChunkElements(elements, c);
        for (uint32_t f = 0; f < frames.CountOf(in_chunk); ++f) {
          EXPECT_GT(frames.ElementsOf(in_chunk, f), 0u);
          sum += frames.ElementsOf(in_chunk, f);
        }
      }
      EXPECT_EQ(sum, elements);
    }
  }
}

TEST(Schedule, OwnersShareTheChunksOfASiteInOrder) {
  const Schedule schedule(Chain(), 3);
  std::vector<int> owners;
  for (uint32_t c = 0; c < 7; ++c)
    owners.push_back(schedule.RouteOf(c, 7).owner);
  EXPECT_EQ(owners, (std::vector<int>{3, 3, 3, 4, 4, 5, 5}));
}

TEST(Schedule, RootKnowsItsChildrenAndChildrenTheirParent) {
  const Schedule::Route root = Schedule(Chain(), 2).RouteOf(6, 7);
  EXPECT_EQ(root.parent, Schedule::kNobody);
  EXPECT_EQ(root.children, (std::vector<int>{1, 5}));
  const Schedule::Route leaf = Schedule(Chain(), 5).RouteOf(6, 7);
  EXPECT_EQ(leaf.parent, 2);
  EXPECT_TRUE(leaf.children.empty());
}

TEST(Schedule, TreesRotateOverTheChunks) {
  Generation g = Chain();
  g.plan.trees = {{{0, 0, 0}}, {{1, 1, 1}}, {{2, 2, 2}}};
  const Schedule schedule(g, 2);  // The only member of site b.
  EXPECT_EQ(schedule.RouteOf(0, 3).parent, 0);
  EXPECT_EQ(schedule.RouteOf(1, 3).parent, Schedule::kNobody);
  EXPECT_EQ(schedule.RouteOf(2, 3).parent, 5);
}

TEST(Schedule, SwapPairsTheOwnersOfBothSites) {
  Generation g = Chain();
  g.sites = {"a", "c"};
  g.members.erase(g.members.begin() + 2);
  g.plan = {true, {}};
  EXPECT_EQ(Schedule(g, 1).RouteOf(3, 4).swap, 4);
  EXPECT_EQ(Schedule(g, 4).RouteOf(3, 4).swap, 1);
  EXPECT_EQ(Schedule(g, 0).RouteOf(3, 4).owner, 1);
}

}  // namespace
}  // namespace pactrain::agent
