#include "kernels/levels_format.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/variants.h"

namespace pactrain::kernels::levels {
namespace {

constexpr Levels kAll[] = {Levels::k3, Levels::k5, Levels::k7, Levels::k15,
                           Levels::k31};
constexpr size_t kPlanes[] = {1, 2, 31, 32, 33, 64, 100, 683};

TEST(Packing, UnpackUndoesPackForEveryCode) {
  std::mt19937 random(1);
  for (Levels levels : kAll) {
    const Packing packing = PackingOf(levels);
    for (size_t plane : kPlanes) {
      std::vector<uint8_t> codes(packing.codes * plane);
      for (uint8_t& code : codes) code = random() % static_cast<int>(levels);
      std::vector<uint8_t> bytes(packing.bytes * plane);
      ReferencePack(levels, codes.data(), plane, bytes.data());
      std::vector<uint8_t> back(codes.size());
      ReferenceUnpack(levels, bytes.data(), plane, back.data());
      EXPECT_EQ(back, codes) << static_cast<int>(levels) << " " << plane;
    }
  }
}

// Whatever the bytes: either they are what their codes pack to, or a code is
// too large. So a stream that no encoder writes is always seen.
TEST(Packing, BytesThatNobodyPacksGiveACodeThatIsTooLarge) {
  std::mt19937 random(2);
  for (Levels levels : kAll) {
    const Packing packing = PackingOf(levels);
    std::vector<uint8_t> bytes(packing.bytes), codes(packing.codes), again;
    for (int draw = 0; draw < 100000; ++draw) {
      for (uint8_t& byte : bytes) byte = random();
      if (draw < 256) bytes[0] = draw;
      ReferenceUnpack(levels, bytes.data(), 1, codes.data());
      if (kReferenceOps.largest(codes.data(), codes.size()) >=
          static_cast<int>(levels)) {
        continue;
      }
      again.assign(packing.bytes, 0);
      ReferencePack(levels, codes.data(), 1, again.data());
      ASSERT_EQ(again, bytes) << static_cast<int>(levels);
    }
  }
}

#if defined(__x86_64__)
TEST(Packing, Avx2EqualsReferenceOnCodesAndOnAnyBytes) {
  if (Variants().size() == 1) GTEST_SKIP() << "this CPU has no AVX2";
  std::mt19937 random(3);
  for (Levels levels : kAll) {
    const Packing packing = PackingOf(levels);
    for (size_t plane : kPlanes) {
      std::vector<uint8_t> codes(packing.codes * plane);
      for (uint8_t& code : codes) code = random() % static_cast<int>(levels);
      std::vector<uint8_t> a(packing.bytes * plane), b(a.size());
      ReferencePack(levels, codes.data(), plane, a.data());
      Avx2Pack(levels, codes.data(), plane, b.data());
      EXPECT_EQ(a, b) << static_cast<int>(levels) << " " << plane;
      for (uint8_t& byte : a) byte = random();
      std::vector<uint8_t> c(codes.size());
      ReferenceUnpack(levels, a.data(), plane, codes.data());
      Avx2Unpack(levels, a.data(), plane, c.data());
      EXPECT_EQ(codes, c) << static_cast<int>(levels) << " " << plane;
      EXPECT_EQ(kReferenceOps.largest(c.data(), c.size()),
                Avx2Largest(c.data(), c.size()));
    }
  }
}
#endif

uint16_t Scale(Levels levels, float max, double rms) {
  return ScaleOf(levels, std::bit_cast<uint32_t>(max), rms * rms * 256, 256);
}

float Value(uint16_t bf16) {
  return std::bit_cast<float>(uint32_t{bf16} << 16);
}

TEST(Scale, IsTheSmallerOfMaxAndClipRoundedUp) {
  EXPECT_EQ(Value(Scale(Levels::k7, 2.0f, 1.0)), 2.0f);
  EXPECT_EQ(Value(Scale(Levels::k7, 2.0001f, 1.0)), 2.015625f);
  EXPECT_EQ(Value(Scale(Levels::k3, 9.0f, 1.0)), 2.5f);
  EXPECT_EQ(Value(Scale(Levels::k5, 9.0f, 1.0)), 3.0f);
  EXPECT_EQ(Value(Scale(Levels::k7, 9.0f, 1.0)), 3.0f);
  EXPECT_EQ(Value(Scale(Levels::k15, 9.0f, 1.0)), 3.609375f);
  EXPECT_EQ(Value(Scale(Levels::k31, 9.0f, 1.0)), 9.0f);
}

TEST(Scale, StaysWithinItsLimits) {
  EXPECT_EQ(Scale(Levels::k31, 0.0f, 0.0), 0);
  EXPECT_EQ(Scale(Levels::k31, 0x1.fp-105f, 1e-33), 0);
  EXPECT_EQ(Scale(Levels::k31, 0x1p-104f, 1e-33), kMinScale);
  EXPECT_EQ(Scale(Levels::k31, 3e38f, 3e38), kMaxScale);
  EXPECT_EQ(Scale(Levels::k31, INFINITY, 1.0), kNaNScale);
  EXPECT_EQ(Scale(Levels::k31, NAN, 1.0), kNaNScale);
}

// The dither as numbers over (-1/2, 1/2), of `count` elements from `first`.
std::vector<double> Draw(uint64_t key, uint32_t first, size_t count) {
  const DitherStream dither(key);
  std::vector<double> draw(count);
  for (size_t i = 0; i < count; ++i) {
    draw[i] = (dither.Bits(first + i) + 0.5) / 65536 - 0.5;
  }
  return draw;
}

// In standard deviations: of independent uniform draws it is about 1.
double Correlation(const std::vector<double>& a, const std::vector<double>& b,
                   size_t lag) {
  double sum = 0;
  const size_t count = a.size() - lag;
  for (size_t i = 0; i < count; ++i) sum += a[i] * b[i + lag];
  return sum * 12 / std::sqrt(static_cast<double>(count));
}

TEST(Dither, IsUniformOverAllItsValues) {
  const DitherStream dither(12345);
  std::vector<int> seen(65536);
  constexpr int kDraws = 64 << 16;
  for (uint32_t i = 0; i < kDraws; ++i) ++seen[dither.Bits(i)];
  double chi_squared = 0;
  for (int count : seen) chi_squared += (count - 64.0) * (count - 64.0) / 64;
  // 65,535 degrees of freedom: mean 65,535, standard deviation 362.
  EXPECT_NEAR(chi_squared, 65535, 5 * 362);
}

TEST(Dither, IsUncorrelatedBetweenElements) {
  const std::vector<double> draw = Draw(7, 1 << 20, 1 << 18);
  for (size_t lag : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 32, 64, 255, 256, 4096}) {
    EXPECT_LT(std::abs(Correlation(draw, draw, lag)), 4.5) << lag;
  }
}

TEST(Dither, IsUncorrelatedBetweenKeysThatHardlyDiffer) {
  const std::vector<double> zero = Draw(0, 0, 1 << 16);
  for (int bit = 0; bit < 64; ++bit) {
    const std::vector<double> other = Draw(uint64_t{1} << bit, 0, 1 << 16);
    for (size_t lag : {0, 1, 8}) {
      EXPECT_LT(std::abs(Correlation(zero, other, lag)), 4.5) << bit;
    }
  }
}

TEST(Dither, HasNoPatternFromKeyToKey) {
  // One element under many keys: what makes a gradient's mean unbiased.
  for (uint32_t element : {0, 5, 8, 1000}) {
    double sum = 0, product = 0, last = 0;
    constexpr int kKeys = 1 << 17;
    for (int key = 0; key < kKeys; ++key) {
      const double u = Draw(key, element, 1)[0];
      sum += u;
      product += u * last;
      last = u;
    }
    EXPECT_LT(std::abs(sum) * std::sqrt(12.0 / kKeys), 4.5);
    EXPECT_LT(std::abs(product) * 12 / std::sqrt(double{kKeys}), 4.5);
  }
}

}  // namespace
}  // namespace pactrain::kernels::levels
