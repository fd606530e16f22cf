// TERNARY between sites: what all ranks get is the same, its noise is as low as
// it should be, and the risk that the coordinator forms is the true one.
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "coordinator/core/noise.h"
#include "gtest/gtest.h"
#include "tests/exchange/mesh.h"

namespace pactrain::tests {
namespace {

using protocol::Codec;
using protocol::Generation;

constexpr uint64_t kElements = 100'000;

// One gradient per rank: `common` of its variance is the same at all.
class Gradients {
 public:
  Gradients(uint32_t ranks, double common, uint64_t elements = kElements) {
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal;
    std::vector<double> shared(elements);
    for (double& value : shared) value = normal(random);
    for (uint32_t r = 0; r < ranks; ++r) {
      std::vector<float>& own = by_rank_.emplace_back(elements);
      for (uint64_t i = 0; i < elements; ++i) {
        own[i] = static_cast<float>(std::sqrt(common) * shared[i] +
                                    std::sqrt(1 - common) * normal(random));
      }
    }
  }
  Gradient AsFunction() const {
    return [this](uint32_t rank, uint64_t i) { return by_rank_[rank][i]; };
  }
  const std::vector<std::vector<float>>& by_rank() const { return by_rank_; }
  std::vector<double> ExactSum() const {
    std::vector<double> sum(by_rank_[0].size());
    for (const auto& own : by_rank_) {
      for (size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
    }
    return sum;
  }

 private:
  std::vector<std::vector<float>> by_rank_;
};

double Squares(size_t n, const std::function<double(size_t)>& value) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += value(i) * value(i);
  return sum;
}

double SquaredError(const std::vector<float>& result,
                    const std::vector<double>& exact) {
  return Squares(exact.size(), [&](size_t i) { return result[i] - exact[i]; });
}

// Sites of 3, 2 and 3 trainers in a chain with its middle as root.
Generation Chain() {
  return MakeGeneration({{3, 2, 3}, /*trainers=*/1, {1}, false});
}

const std::vector<Shape> kShapes = {{{3, 2, 3}, 1, {1}, false},
                                    {{2, 1, 3}, 2, {0, 1, 2}, false},
                                    {{2, 3}, 1, {}, true},
                                    {{1, 1, 1}, 1, {1}, false}};

TEST(Levels, AllMembersGetTheSameBitsInAnyOrderAndAttempt) {
  for (const Shape& shape : kShapes) {
    const Generation g = MakeGeneration(shape);
    const Gradients gradients(g.world_size, 0.2, 70'001);
    for (Codec codec : {Codec::kLevels3, Codec::kLevels5, Codec::kLevels7,
                        Codec::kLevels15, Codec::kLevels31}) {
      MeshOptions options{.codec = codec, .elements = 70'001};
      const auto first = RunMesh(g, options, gradients.AsFunction());
      options.seed = 9;
      options.attempt = 2;
      options.measure = true;  // Measuring changes nothing.
      const auto again = RunMesh(g, options, gradients.AsFunction());
      for (const auto* run : {&first, &again}) {
        for (const std::vector<float>& result : run->results) {
          ASSERT_EQ(std::memcmp(result.data(), first.results[0].data(),
                                result.size() * 4),
                    0);
        }
      }
    }
  }
}

TEST(Levels, AnotherStepHasOtherNoise) {
  const Generation g = Chain();
  const Gradients gradients(g.world_size, 0);
  const auto exact = gradients.ExactSum();
  MeshOptions options{.codec = Codec::kLevels7, .elements = kElements};
  const auto first = RunMesh(g, options, gradients.AsFunction());
  options.step = 8;
  const auto second = RunMesh(g, options, gradients.AsFunction());
  const double both = Squares(kElements, [&](size_t i) {
    return 0.5 * (first.results[0][i] + second.results[0][i]) - exact[i];
  });
  EXPECT_LT(both, 0.6 * SquaredError(first.results[0], exact));
}

TEST(Levels, NoiseOfTheWholeExchangeIsLow) {
  struct Goal {
    Codec codec;
    double nmse;
  };
  const Generation g = Chain();
  const Gradients gradients(g.world_size, 0);
  const auto exact = gradients.ExactSum();
  const double norm = Squares(kElements, [&](size_t i) { return exact[i]; });
  for (const Goal& goal :
       {Goal{Codec::kLevels7, 0.15}, Goal{Codec::kLevels15, 0.03}}) {
    const auto run = RunMesh(g, {.codec = goal.codec, .elements = kElements},
                             gradients.AsFunction());
    const double nmse = SquaredError(run.results[0], exact) / norm;
    EXPECT_LE(nmse, goal.nmse);
    RecordProperty("nmse_ppm_" + std::to_string(static_cast<int>(goal.codec)),
                   static_cast<int>(1e6 * nmse));
  }
}

TEST(Levels, NotANumberReachesEveryRank) {
  const Generation g = Chain();
  const Gradient gradient = [](uint32_t rank, uint64_t i) {
    return rank == 2 && i == 700 ? std::nanf("") : 1.0f;
  };
  const auto run =
      RunMesh(g, {.codec = Codec::kLevels7, .elements = 1000}, gradient);
  for (const std::vector<float>& result : run.results) {
    EXPECT_TRUE(std::isnan(result[700]));
    EXPECT_FALSE(std::isnan(result[0]));
  }
}

TEST(Levels, OneSiteSumsExactly) {
  const Generation g = MakeGeneration({{3}, 2, {0}, false});
  const Gradient integers = [](uint32_t rank, uint64_t i) {
    return static_cast<float>(rank + i % 5);
  };
  const auto run =
      RunMesh(g, {.codec = Codec::kLevels3, .elements = 3000}, integers);
  for (uint64_t i = 0; i < 3000; ++i) {
    ASSERT_EQ(run.results[2][i], static_cast<float>(15 + 6 * (i % 5)));
  }
}

// What the agents would report of a run.
void Report(const Generation& g, const Gradients& gradients,
            const MeshResult& run, uint64_t step, coordinator::Noise& noise) {
  for (size_t m = 0; m < g.members.size(); ++m) {
    protocol::StepReport::Noise sample;
    sample.step = step;
    for (uint32_t rank : g.members[m].ranks) {
      const std::vector<float>& own = gradients.by_rank()[rank];
      sample.local += Squares(own.size(), [&](size_t i) { return own[i]; });
    }
    sample.site = run.noise[m].site_squares;
    sample.encoded = run.noise[m].encoded_squares;
    sample.error = run.noise[m].error_squares;
    sample.clip = run.noise[m].clip_squares;
    sample.total = run.noise[m].total_squares;
    noise.Add(g.members[m].agent, sample);
  }
}

// ||result - exact||^2 / N^2 over the variance of the mean, from all gradients.
double TrueRisk(const Gradients& gradients, const std::vector<float>& result) {
  const std::vector<double> exact = gradients.ExactSum();
  const double n = static_cast<double>(gradients.by_rank().size());
  double spread = 0;
  for (const std::vector<float>& own : gradients.by_rank()) {
    spread +=
        Squares(exact.size(), [&](size_t i) { return own[i] - exact[i] / n; });
  }
  const double variance = spread / (n - 1) / n;
  return SquaredError(result, exact) / (n * n) / variance;
}

TEST(Risk, AsReportedIsWithinATenthOfTheTrueOne) {
  for (const Shape& shape : kShapes) {
    for (double common : {0.0, 0.3}) {
      for (Codec codec : {Codec::kLevels3, Codec::kLevels7, Codec::kLevels31}) {
        const Generation g = MakeGeneration(shape);
        const Gradients gradients(g.world_size, common);
        const auto run =
            RunMesh(g, {.codec = codec, .elements = kElements, .measure = true},
                    gradients.AsFunction());
        coordinator::Noise noise(g);
        Report(g, gradients, run, 8, noise);
        const auto estimate = noise.Newest();
        ASSERT_TRUE(estimate.has_value());
        const double truth = TrueRisk(gradients, run.results[0]);
        EXPECT_NEAR(estimate->risk(), truth, 0.1 * truth)
            << "sites " << shape.agents.size() << ", common " << common
            << ", codec " << static_cast<int>(codec);
      }
    }
  }
}

TEST(Risk, WhatIsClippedIsReportedApart) {
  const Generation g = MakeGeneration({{1, 1}, 2, {}, true});
  // One element of every block is far outside.
  const Gradient spikes = [](uint32_t rank, uint64_t i) {
    return i % 256 == 9 ? 100.0f : static_cast<float>((i + rank) % 3) - 1;
  };
  const auto measure = [&](Codec codec) {
    const auto run = RunMesh(
        g, {.codec = codec, .elements = kElements, .measure = true}, spikes);
    agent::ExchangeNoise sum;
    for (const agent::ExchangeNoise& noise : run.noise) sum += noise;
    return sum;
  };
  const agent::ExchangeNoise coarse = measure(Codec::kLevels3);
  EXPECT_GT(coarse.clip_squares, 0.5 * coarse.error_squares);
  EXPECT_LT(coarse.clip_squares, coarse.error_squares);
  const agent::ExchangeNoise fine = measure(Codec::kLevels31);
  EXPECT_GT(fine.error_squares, 0);
  EXPECT_LT(fine.clip_squares, 1e-3 * fine.error_squares);
}

// Of two sites that swap each member encodes its site's sum and nothing else.
TEST(Risk, WhatIsEncodedIsMeasuredInEveryCodec) {
  const Generation g = MakeGeneration({{1, 1}, 2, {}, true});
  const Gradients gradients(g.world_size, 0);
  for (Codec codec : {Codec::kFp32, Codec::kBf16, Codec::kLevels3,
                      Codec::kLevels7, Codec::kLevels31}) {
    const auto run =
        RunMesh(g, {.codec = codec, .elements = kElements, .measure = true},
                gradients.AsFunction());
    for (const agent::ExchangeNoise& noise : run.noise) {
      EXPECT_GT(noise.site_squares, 0);
      EXPECT_NEAR(noise.encoded_squares / noise.site_squares, 1, 1e-9)
          << "codec " << static_cast<int>(codec);
    }
  }
}

TEST(Risk, AnExactCodecHasNoneAndSaysWhatWouldBeEncoded) {
  const Generation g = Chain();
  const Gradients gradients(g.world_size, 0);
  const auto exact = RunMesh(g, {.elements = kElements, .measure = true},
                             gradients.AsFunction());
  const auto coarse = RunMesh(
      g, {.codec = Codec::kLevels7, .elements = kElements, .measure = true},
      gradients.AsFunction());
  coordinator::Noise without(g), with(g);
  Report(g, gradients, exact, 8, without);
  Report(g, gradients, coarse, 8, with);
  EXPECT_EQ(without.Newest()->risk(), 0);
  EXPECT_NEAR(without.Newest()->encoded, with.Newest()->encoded,
              0.1 * with.Newest()->encoded);
  EXPECT_NEAR(without.Newest()->variance, with.Newest()->variance,
              1e-6 * with.Newest()->variance);
}

}  // namespace
}  // namespace pactrain::tests
