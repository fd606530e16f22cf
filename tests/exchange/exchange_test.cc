// The exchange over many shapes: exact, bit-identical at all members, whatever
// the order in which frames come.
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/exchange/mesh.h"

namespace pactrain::tests {
namespace {

using protocol::Codec;
using protocol::Generation;
using protocol::Op;

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Small integers: every sum of them is exact, so a missing or double one shows.
float Integer(uint32_t rank, uint64_t i) {
  return static_cast<float>(static_cast<int>(Mix(rank * 1000003ull + i) % 17) -
                            8);
}

// Values for which the order of addition matters.
float Real(uint32_t rank, uint64_t i) {
  const uint64_t x = Mix(rank * 7919ull + i);
  return std::ldexp(static_cast<float>(x % 16777216) / 16777216.0f - 0.5f,
                    static_cast<int>(x >> 60));
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const std::vector<int>& agents : std::vector<std::vector<int>>{
           {1}, {2}, {5}, {1, 1}, {3, 1}, {1, 1, 1}, {2, 1, 3}, {1, 2, 3, 2}}) {
    for (int trainers : {1, 2, 3, 4}) {
      const int sites = static_cast<int>(agents.size());
      shapes.push_back({agents, trainers, {sites / 2}, false});
      if (sites == 2) shapes.push_back({agents, trainers, {}, true});
      if (sites > 2) {
        std::vector<int> roots;
        for (int s = 0; s < sites; ++s) roots.push_back(s);
        shapes.push_back({agents, trainers, roots, false});
      }
    }
  }
  return shapes;
}

std::string Name(const Shape& shape) {
  std::string name =
      shape.swap ? "swap" : "roots" + std::to_string(shape.roots.size());
  for (int agents : shape.agents) name += "_" + std::to_string(agents);
  return name + "_t" + std::to_string(shape.trainers);
}

void ExpectExact(const Generation& g, const MeshResult& run,
                 uint64_t elements) {
  for (const auto& result : run.results)
    EXPECT_TRUE(SameBits(result, run.results[0]));
  for (uint64_t i = 0; i < elements; ++i) {
    float want = 0;
    for (uint32_t rank = 0; rank < g.world_size; ++rank)
      want += Integer(rank, i);
    ASSERT_EQ(run.results[0][i], want) << "element " << i;
  }
}

class Exchange : public testing::TestWithParam<Shape> {};

TEST_P(Exchange, SumsEachRankExactlyOnce) {
  const Generation g = MakeGeneration(GetParam());
  for (uint64_t elements : {0, 1, 7, 1000, 70001}) {
    ExpectExact(g,
                RunMesh(g, {.elements = elements, .seed = elements}, Integer),
                elements);
  }
}

TEST_P(Exchange, SumsAMillionElementsExactly) {
  const Generation g = MakeGeneration(GetParam());
  const uint64_t elements = 1000003;
  ExpectExact(g, RunMesh(g, {.elements = elements, .seed = 9}, Integer),
              elements);
}

TEST_P(Exchange, OrderOfArrivalChangesNoBit) {
  const Generation g = MakeGeneration(GetParam());
  const MeshResult first = RunMesh(g, {.elements = 5000, .seed = 1}, Real);
  for (uint64_t seed = 2; seed < 6; ++seed) {
    const MeshResult other = RunMesh(g, {.elements = 5000, .seed = seed}, Real);
    for (const auto& result : other.results) {
      EXPECT_TRUE(SameBits(result, first.results[0]));
    }
  }
}

TEST_P(Exchange, Bf16IsIdenticalAtAllMembersAndNear) {
  const Generation g = MakeGeneration(GetParam());
  const uint64_t elements = 3001;
  const MeshResult exact = RunMesh(g, {.elements = elements}, Real);
  const MeshResult run = RunMesh(
      g, {.codec = Codec::kBf16, .elements = elements, .seed = 3}, Real);
  double error = 0, norm = 0;
  for (uint64_t i = 0; i < elements; ++i) {
    error += std::pow(run.results[0][i] - exact.results[0][i], 2);
    norm += std::pow(exact.results[0][i], 2);
  }
  for (const auto& result : run.results)
    EXPECT_TRUE(SameBits(result, run.results[0]));
  EXPECT_LT(error, 1e-4 * norm);
}

TEST_P(Exchange, XorCarriesAnyBitsOfOneRank) {
  const Generation g = MakeGeneration(GetParam());
  const auto bits = [](uint64_t i) {
    return std::bit_cast<float>(static_cast<uint32_t>(Mix(i)));
  };
  const MeshResult run = RunMesh(
      g, {.op = Op::kXor, .elements = 4099, .seed = 5},
      [&](uint32_t rank, uint64_t i) { return rank == 0 ? bits(i) : 0.0f; });
  for (const auto& result : run.results) {
    for (uint64_t i = 0; i < result.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(result[i]),
                static_cast<uint32_t>(Mix(i)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Exchange, testing::ValuesIn(Shapes()),
                         [](const auto& info) { return Name(info.param); });

// Where the root is fixed: whatever chunk and owner an element falls to, it is
// added up in the same order.
TEST(ExchangeCompacted, EqualsMaskedFullBitForBit) {
  const uint64_t elements = 200000;
  std::vector<uint64_t> kept;
  for (uint64_t i = 0; i < elements; ++i) {
    if (Mix(i) % 10 < 3) kept.push_back(i);
  }
  for (Codec codec : {Codec::kFp32, Codec::kBf16}) {
    for (const Shape& shape :
         {Shape{{5}, 1, {0}, false}, Shape{{3, 1}, 1, {}, true},
          Shape{{3, 1}, 1, {1}, false}, Shape{{2, 1, 3}, 2, {1}, false}}) {
      const Generation g = MakeGeneration(shape);
      const MeshResult full =
          RunMesh(g, {.codec = codec, .elements = elements, .seed = 1}, Real);
      const MeshResult compacted = RunMesh(
          g, {.codec = codec, .elements = kept.size(), .seed = 2},
          [&](uint32_t rank, uint64_t i) { return Real(rank, kept[i]); });
      std::vector<float> masked;
      for (uint64_t i : kept) masked.push_back(full.results[0][i]);
      EXPECT_TRUE(SameBits(compacted.results[0], masked)) << Name(shape);
    }
  }
}

TEST(ExchangeNonFinite, EveryMemberSeesIt) {
  const Generation g = MakeGeneration({{2, 1, 1}, 1, {1}, false});
  const MeshResult run = RunMesh(g, {.codec = Codec::kBf16, .elements = 10},
                                 [](uint32_t rank, uint64_t i) {
                                   return rank == 1 && i == 3   ? NAN
                                          : rank == 2 && i == 4 ? INFINITY
                                                                : 1.0f;
                                 });
  for (const auto& result : run.results) {
    EXPECT_TRUE(std::isnan(result[3]));
    EXPECT_TRUE(std::isinf(result[4]));
    EXPECT_EQ(result[5], 4.0f);
  }
}

// Of a plan for the release before: chunks of 65,536 elements.
TEST(ExchangeChunks, EvenOnesChangeNoBitWhereTheRootIsFixed) {
  const uint64_t elements = 150000;
  for (const Codec codec : {Codec::kFp32, Codec::kLevels7}) {
    Shape shape{{2, 1, 3}, 2, {1}, false};
    const MeshOptions options = {.codec = codec, .elements = elements};
    const MeshResult even = RunMesh(MakeGeneration(shape), options, Real);
    shape.even_chunks = false;
    const MeshResult before = RunMesh(MakeGeneration(shape), options, Real);
    for (size_t member = 0; member < even.results.size(); ++member) {
      EXPECT_TRUE(SameBits(even.results[member], before.results[member]));
    }
  }
}

// 16 sites on a core, 8 chunks of 65,536: half of the sites would be roots, and
// have 2 (1/8 of the sum from each of 15 others). Even: nearly 2 x 15/16.
TEST(ExchangeBytes, RootsOnACoreShareABucketEvenly) {
  const uint64_t elements = 8 * 65536;
  Shape shape{std::vector<int>(16, 1), 1, {}, false};
  for (int root = 0; root < 16; ++root) shape.roots.push_back(root);
  const auto sums_sent = [&] {
    return RunMesh(MakeGeneration(shape), {.elements = elements}, Real)
               .site_bytes_sent_most /
           (elements * 4.0);
  };
  EXPECT_LT(sums_sent(), 1.9);
  shape.even_chunks = false;
  EXPECT_GT(sums_sent(), 2.7);
}

// The cut-set lower bound: S bytes in each direction over a leaf's link.
TEST(ExchangeBytes, ALeafSiteSendsItsSumOnce) {
  const uint64_t elements = 1000000;
  const Generation g = MakeGeneration({{1, 1}, 1, {}, true});
  const MeshResult run = RunMesh(g, {.elements = elements}, Real);
  EXPECT_LT(run.site_bytes_sent_most, elements * 4 * 1.01);
}

}  // namespace
}  // namespace pactrain::tests
