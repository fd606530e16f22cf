#include "kernels/levels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/test_levels.h"
#include "kernels/variants.h"

namespace pactrain::kernels {
namespace {

double SquaredDistance(const Floats& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  }
  return sum;
}

double Nmse(const Floats& exact, const Floats& other) {
  return SquaredDistance(exact, other) /
         SquaredDistance(exact, Floats(exact.size()));
}

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

// Of a table by levels.
size_t Index(Levels levels) {
  return std::find(std::begin(kAllLevels), std::end(kAllLevels), levels) -
         std::begin(kAllLevels);
}

INSTANTIATE_TEST_SUITE_P(All, LevelsTest, ::testing::ValuesIn(kAllLevels),
                         NameOf);

TEST_P(LevelsTest, BitsPerElementMeetTheirGoal) {
  constexpr double kMost[] = {1.68, 2.45, 2.99, 4.08, 5.1};
  EXPECT_LE(8.0 * MaxLevelsBytes(levels(), 16384) / 16384,
            kMost[Index(levels())]);
  // Of Gaussian values, within 6 % of their entropy (3 levels: 8 %).
  constexpr double kGaussian[] = {1.39, 1.92, 2.36, 3.45, 4.64};
  const size_t bytes = Encoded(levels(), Gaussian(16384, 1.0)).size();
  EXPECT_LE(8.0 * static_cast<double>(bytes) / 16384,
            kGaussian[Index(levels())]);
}

TEST_P(LevelsTest, ZerosAndLongTailsTakeFewerBitsAndAltogetherFlatOnesNoMore) {
  const size_t gaussian = Encoded(levels(), Gaussian(16384, 1.0)).size();
  EXPECT_LT(Encoded(levels(), Floats(16384)).size(), gaussian);
  Floats tails = Gaussian(16384, 1.0);
  for (float& x : tails) x *= x * x;
  EXPECT_LT(Encoded(levels(), tails).size(), gaussian);
  // Blocks of signs: their codes are the two with the longest words.
  EXPECT_EQ(Encoded(levels(), Signs(16384)).size(),
            MaxLevelsBytes(levels(), 16384));
}

// A block of all zeros, one of denormals, one with Inf, and what a float's
// range allows, among ordinary blocks.
Floats Mixed(size_t elements) {
  Floats in = Gaussian(elements, 1.0, 5);
  for (size_t i = 0; i < elements; ++i) {
    switch (i / kLevelsBlock % 9) {
      case 1:
        in[i] = i % 2 == 0 ? 0.0f : -0.0f;
        break;
      case 2:
        in[i] *= 1e-42f;
        break;
      case 3:
        if (i % kLevelsBlock == 77) in[i] = -INFINITY;
        break;
      case 4:
        in[i] *= 1e38f;
        break;
      case 5:
        in[i] *= std::ldexp(1.0f, -static_cast<int>(i % 130));
        break;
      case 6:
        if (i % kLevelsBlock != 9) in[i] = -0.0f;
        break;
    }
  }
  return in;
}

void ExpectEqualsReference(const Variant& variant, Levels levels, size_t n,
                           const LevelsDither& dither, LevelsForm form) {
  const Variant& plain = ReferenceVariant();
  const size_t size = MaxLevelsBytes(levels, n);
  // Addresses with the alignment of their type only, and guards behind.
  Floats in = Mixed(n + 1);
  std::vector<uint8_t> a(size + 34, 0xab), b = a;
  size_t a_bytes = 99, b_bytes = 99;
  Floats known(n + 10, 3.0f);
  const LevelsNoise x = plain.encode_levels(levels, dither, form, in.data() + 1,
                                            n, a.data() + 1, &a_bytes, nullptr);
  const LevelsNoise y =
      variant.encode_levels(levels, dither, form, in.data() + 1, n,
                            b.data() + 1, &b_bytes, known.data() + 1);
  EXPECT_EQ(a, b);
  ASSERT_EQ(a_bytes, b_bytes);
  ASSERT_LE(a_bytes, size);
  EXPECT_EQ(a[0], 0xab);
  for (size_t i = size + 1; i < a.size(); ++i) ASSERT_EQ(a[i], 0xab);
  EXPECT_EQ(x.error_squared, y.error_squared);
  EXPECT_EQ(x.input_squared, y.input_squared);
  EXPECT_EQ(x.clip_squared, y.clip_squared);

  Floats c(n + 10, 3.0f), d = c;
  const std::span<const uint8_t> bytes(a.data() + 1, a_bytes);
  ASSERT_TRUE(plain.decode_levels(levels, dither, bytes, n, c.data() + 1));
  ASSERT_TRUE(variant.decode_levels(levels, dither, bytes, n, d.data() + 1));
  EXPECT_EQ(std::memcmp(c.data(), d.data(), 4 * c.size()), 0);
  // What the encoder says of it, too.
  EXPECT_EQ(std::memcmp(c.data(), known.data(), 4 * c.size()), 0);
  EXPECT_EQ(c[0], 3.0f);
  for (size_t i = n + 1; i < c.size(); ++i) ASSERT_EQ(c[i], 3.0f);
}

TEST_P(LevelsTest, EveryVariantWritesAndReadsTheSameBits) {
  for (const Variant* variant : Variants()) {
    for (size_t n : {0, 1, 7, 255, 256, 257, 1000, 4096, 16384, 65536}) {
      SCOPED_TRACE(std::string(variant->name) + ", " + std::to_string(n));
      for (LevelsForm form : {LevelsForm::kPacked, LevelsForm::kShorter}) {
        ExpectEqualsReference(*variant, levels(), n, {0x123456789abcdef, 48},
                              form);
      }
    }
  }
}

TEST_P(LevelsTest, BothFormsDecodeToTheSameBits) {
  for (size_t n : {1, 300, 16384}) {
    const Floats in = Mixed(n);
    Floats a(n), b(n);
    const auto packed =
        Encoded(levels(), in, {5, 0}, nullptr, LevelsForm::kPacked);
    EXPECT_EQ(packed.size(), MaxLevelsBytes(levels(), n));
    const auto shorter = Encoded(levels(), in, {5, 0});
    ASSERT_TRUE(DecodeLevels(levels(), {5, 0}, packed, n, a.data()));
    ASSERT_TRUE(DecodeLevels(levels(), {5, 0}, shorter, n, b.data()));
    EXPECT_EQ(std::memcmp(a.data(), b.data(), 4 * n), 0);
  }
}

TEST_P(LevelsTest, NoiseOnGaussianDataMeetsItsGoal) {
  constexpr double kGoal[] = {0.55, 0.19, 0.085, 0.018, 0.004};
  for (double sigma : {1e-30, 1e-8, 1.0, 1e4, 1e30}) {
    const Floats in = Gaussian(65536, sigma);
    EXPECT_LE(Nmse(in, Through(levels(), in, {9, 0})), kGoal[Index(levels())])
        << sigma;
  }
}

TEST_P(LevelsTest, MeasuredNoiseIsTheTrueNoise) {
  for (double sigma : {1e-30, 1e-8, 1.0, 1e4, 1e30}) {
    for (size_t n : {100, 1000, 16384}) {
      const Floats in = Gaussian(n, sigma);
      LevelsNoise noise;
      const Floats out = Through(levels(), in, {3, 16}, &noise);
      const double input = SquaredDistance(in, Floats(n));
      const double error = SquaredDistance(in, out);
      EXPECT_NEAR(noise.input_squared / input, 1, 1e-12);
      EXPECT_NEAR(noise.error_squared / error, 1, 1e-6) << sigma << " " << n;
    }
  }
}

TEST_P(LevelsTest, IsUnbiasedWhereNothingIsClipped) {
  constexpr int kDraws = 10000;
  Floats in = Gaussian(kLevelsBlock, 0.4, 17);
  for (float& x : in) x = std::max(-1.0f, std::min(1.0f, x));
  std::vector<double> sum(in.size());
  double squares = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    LevelsNoise noise;
    const Floats out =
        Through(levels(), in, {static_cast<uint64_t>(draw), 0}, &noise);
    ASSERT_EQ(noise.clip_squared, 0);
    squares += noise.error_squared;
    for (size_t i = 0; i < in.size(); ++i) sum[i] += double{out[i]} - in[i];
  }
  // Each error is uniform over one step: variance step^2 / 12. The bounds are
  // 5 standard deviations for the worst of 256 elements, and for their chi^2.
  const double step = 2.0 / (static_cast<int>(levels()) - 1);
  const double deviation = step / std::sqrt(12.0 * kDraws);
  double chi_squared = 0;
  for (double s : sum) {
    EXPECT_LT(std::abs(s / kDraws), 5 * deviation);
    chi_squared += std::pow(s / kDraws / deviation, 2);
  }
  EXPECT_NEAR(chi_squared, 256, 5 * std::sqrt(2 * 256.0));
  EXPECT_NEAR(squares / kDraws / 256, step * step / 12, 0.001 * step * step);
}

TEST_P(LevelsTest, ReportsTheClippedPartApart) {
  // One element far outside in every block: that is clipped, and alone biased.
  Floats in = Gaussian(kLevelsBlock, 1.0, 4);
  for (float& x : in) x = std::max(-1.0f, std::min(1.0f, x));
  in[100] = 14.0f;
  LevelsNoise noise;
  double sum = 0;
  constexpr int kDraws = 10000;
  for (int draw = 0; draw < kDraws; ++draw) {
    const LevelsDither dither = {static_cast<uint64_t>(draw), 0};
    sum += Through(levels(), in, dither, &noise)[100] - 14.0;
  }
  const double bias = -sum / kDraws;
  if (levels() == Levels::k31) {
    EXPECT_EQ(noise.clip_squared, 0);
    EXPECT_NEAR(bias, 0, 0.02);
  } else {
    EXPECT_GT(bias, 8);
    EXPECT_NEAR(std::sqrt(noise.clip_squared), bias, 0.1);
    EXPECT_LT(noise.clip_squared, noise.error_squared);
  }
}

TEST_P(LevelsTest, SumsOfEncodersAddTheirNoiseOnlyIfTheirKeysDiffer) {
  const Floats in = Gaussian(65536, 1.0);
  const Floats a = Through(levels(), in, {1, 0});
  const Floats b = Through(levels(), in, {2, 0});
  const double one = SquaredDistance(in, a);
  const auto sum_with = [&](const Floats& other) {
    double sum = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const double error = double{a[i]} + other[i] - 2.0 * in[i];
      sum += error * error;
    }
    return sum;
  };
  // What is clipped is clipped by both: a few per mille, but for 3 levels.
  EXPECT_NEAR(sum_with(b) / one, 2, 0.05);
  EXPECT_EQ(sum_with(a) / one, 4);
}

TEST_P(LevelsTest, FramesDoNotChangeWhatIsDecoded) {
  const Floats in = Gaussian(8192, 1.0);
  const Floats whole = Through(levels(), in, {5, 1024});
  Floats pieces;
  for (size_t i = 0; i < in.size(); i += 2048) {
    const Floats piece =
        Through(levels(), Floats(in.begin() + i, in.begin() + i + 2048),
                {5, static_cast<uint32_t>(1024 + i)});
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, whole);
}

TEST_P(LevelsTest, NaNAndInfMakeTheirBlockNaNAndSurviveTheNextHop) {
  for (float bad :
       {std::numeric_limits<float>::infinity(), -INFINITY,
        std::bit_cast<float>(0xffc12345u), std::bit_cast<float>(0x7f800001u)}) {
    for (size_t n : {600, 16384}) {
      Floats in = Gaussian(n, 1.0);
      in[300] = bad;
      LevelsNoise noise;
      const Floats once = Through(levels(), in, {1, 0}, &noise);
      EXPECT_TRUE(std::isfinite(noise.error_squared));
      EXPECT_LT(noise.error_squared, noise.input_squared);
      Floats sum(n);
      const float* terms[] = {once.data(), in.data()};
      BestVariant().sum(terms, 2, n, sum.data());
      const Floats twice = Through(levels(), sum, {2, 0});
      for (size_t i = 0; i < n; ++i) {
        const bool in_block = i / kLevelsBlock == 1;
        ASSERT_EQ(std::isnan(twice[i]), in_block) << i;
        if (in_block) {
          ASSERT_EQ(Bits(once[i]), 0x7fc00000u);
          ASSERT_EQ(Bits(twice[i]), 0x7fc00000u);
        }
      }
    }
  }
}

TEST_P(LevelsTest, BlocksBelowTheSmallestScaleDecodeToPositiveZeros) {
  for (float x : {0.0f, -0.0f, 1e-45f, -1e-40f, 4e-32f}) {
    LevelsNoise noise;
    const Floats out = Through(levels(), Floats(300, x), {1, 0}, &noise);
    for (float y : out) ASSERT_EQ(Bits(y), 0u);
    EXPECT_EQ(noise.error_squared, noise.input_squared);
    EXPECT_EQ(noise.clip_squared, 0);
  }
}

TEST_P(LevelsTest, TheLargestFloatsStayFinite) {
  const float max = std::numeric_limits<float>::max();
  Floats in(512, max);
  for (size_t i = 0; i < in.size(); i += 3) in[i] = -max;
  LevelsNoise noise;
  const Floats out = Through(levels(), in, {1, 0}, &noise);
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_TRUE(std::isfinite(out[i]));
    ASSERT_EQ(std::signbit(out[i]), std::signbit(in[i]));
  }
  EXPECT_TRUE(std::isfinite(noise.error_squared));
  EXPECT_GT(noise.clip_squared, 0.1 * noise.input_squared);
}

#if defined(__x86_64__)
// As torch::set_flush_denormal would have it.
class FlushedDenormals {
 public:
  FlushedDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushedDenormals() { _mm_setcsr(before_); }

 private:
  const unsigned before_;
};

TEST_P(LevelsTest, DecodesToTheSameBitsWhereDenormalsAreFlushed) {
  for (float scale : {0x1p-104f, 0x1.8p-104f, 1.0f, 0x1p126f}) {
    Floats in = Gaussian(1000, 0.5);
    for (float& x : in) x *= scale;
    for (size_t i = 0; i < in.size(); i += kLevelsBlock) in[i] = scale;
    const std::vector<uint8_t> bytes = Encoded(levels(), in);
    for (const Variant* variant : Variants()) {
      Floats plain(in.size()), flushed(in.size());
      ASSERT_TRUE(
          variant->decode_levels(levels(), {}, bytes, in.size(), plain.data()));
      {
        const FlushedDenormals flush;
        variant->decode_levels(levels(), {}, bytes, in.size(), flushed.data());
      }
      ASSERT_EQ(std::memcmp(plain.data(), flushed.data(), 4 * in.size()), 0);
      EXPECT_NE(plain[0], 0.0f);
    }
  }
}
#endif

}  // namespace
}  // namespace pactrain::kernels
