#include "agent/exchange/schedule.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
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
    Generation g = Chain();
    g.plan.even_chunks = true;
    const Schedule schedule(g, 3);
    for (uint64_t elements : {0u, 1u, 2048u, 2049u, 65536u, 65537u, 1000003u}) {
      uint64_t sum = 0;
      const uint32_t size = schedule.ChunkSize(elements, frames.size());
      for (uint32_t c = 0; c < ChunkCount(elements, size); ++c) {
        const uint32_t in_chunk = ChunkElements(elements, size, c);
        for (uint32_t f = 0; f < frames.CountOf(in_chunk); ++f) {
          EXPECT_GT(frames.ElementsOf(in_chunk, f), 0u);
          sum += frames.ElementsOf(in_chunk, f);
        }
      }
      EXPECT_EQ(sum, elements);
    }
  }
}

TEST(Schedule, ChunksOfAPlanForTheReleaseBeforeAreWhole) {
  EXPECT_EQ(Schedule(Chain(), 3).ChunkSize(70000, 4096), 65536u);
}

// A generation of so many sites on a core, whose agents `agents` counts.
Generation Star(int sites, const std::function<int(int)>& agents) {
  Generation g;
  for (int site = 0; site < sites; ++site) {
    g.sites.push_back("site-" + std::to_string(10 + site));
    for (int agent = 0; agent < agents(site); ++agent) {
      g.members.emplace_back().site = g.sites.back();
    }
    g.plan.trees.push_back(
        {std::vector<uint16_t>(sites, static_cast<uint16_t>(site))});
  }
  g.plan.even_chunks = true;
  return g;
}

// The simulator's are the same (bench/test_evidence_scale.py).
TEST(Schedule, SizesOfEvenChunks) {
  const Schedule star(Star(5, [](int) { return 1; }), 0);
  EXPECT_EQ(star.ChunkSize(70'000, 4096), 16384u);
  EXPECT_EQ(star.ChunkSize(137'216, 4096), 28672u);
  EXPECT_EQ(star.ChunkSize(500'000, 16384), 16384u);
  EXPECT_EQ(star.ChunkSize(6'553'600, 4096), 65536u);
  const Schedule many(Star(32, [](int site) { return site % 2 ? 1 : 3; }), 0);
  EXPECT_EQ(many.ChunkSize(1'000'000, 4096), 8192u);
  EXPECT_EQ(many.ChunkSize(11'173'962, 16384), 32768u);
  // Who shares with nobody needs no small ones.
  Generation one_root = Star(5, [](int) { return 1; });
  one_root.plan.trees.resize(1);
  EXPECT_EQ(Schedule(one_root, 0).ChunkSize(65'537, 4096), 65536u);
}

// Frames of whoever has most, by `who` of each chunk.
uint64_t Most(uint64_t elements, uint32_t size, uint32_t frame,
              const std::function<int(uint32_t)>& who) {
  std::map<int, uint64_t> shares;
  for (uint32_t c = 0; c < ChunkCount(elements, size); ++c) {
    shares[who(c)] += (ChunkElements(elements, size, c) + frame - 1) / frame;
  }
  uint64_t most = 0;
  for (const auto& [sharer, share] : shares) most = std::max(most, share);
  return most;
}

// No root has more of a bucket than an even share and a 64th of it, and no
// member of a site; chunks are large where that allows it.
TEST(Schedule, EvenChunksAreSharedOutEvenly) {
  for (const int sites : {3, 5, 16, 32}) {
    const Generation g = Star(sites, [](int site) { return 1 + site % 3; });
    const Schedule schedule(g, 0);
    for (const uint32_t frame : {4096, 16384}) {
      for (const uint64_t frames : {1, 2, 7, 31, 33, 100, 161, 2729, 32768}) {
        const uint64_t elements = frames * frame - 1;
        const uint32_t size = schedule.ChunkSize(elements, frame);
        const uint32_t chunks = ChunkCount(elements, size);
        ASSERT_EQ(size % frame, 0u);
        ASSERT_LE(size, protocol::kChunkElements);
        if (frames == 32768) {
          EXPECT_EQ(size, protocol::kChunkElements);
        }
        const auto even = [&](uint64_t sharers) {
          return (frames + sharers - 1) / sharers * 65 / 64;
        };
        EXPECT_LE(Most(elements, size, frame,
                       [&](uint32_t c) { return schedule.RootSiteOf(c); }),
                  even(sites));
        for (int site = 0; site < sites; ++site) {
          const Schedule there(g, g.MembersOfSite(site).front());
          EXPECT_LE(
              Most(elements, size, frame,
                   [&](uint32_t c) { return there.RouteOf(c, chunks).owner; }),
              even(there.site_members().size()));
        }
      }
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
