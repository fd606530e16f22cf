// What the tests of the n-level codec share: values and round trips.
#ifndef PACTRAIN_KERNELS_TEST_LEVELS_H_
#define PACTRAIN_KERNELS_TEST_LEVELS_H_

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/levels.h"

namespace pactrain::kernels {

using Floats = std::vector<float>;

inline Floats Gaussian(size_t elements, double sigma, int seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, sigma);
  Floats out(elements);
  for (float& x : out) x = static_cast<float>(normal(random));
  return out;
}

// Values whose codes are packed, as no prefix code is short for them.
inline Floats Signs(size_t elements) {
  Floats out = Gaussian(elements, 1.0, 6);
  for (float& x : out) x = std::copysign(1.0f, x);
  return out;
}

inline std::vector<uint8_t> Encoded(Levels levels, const Floats& in,
                                    const LevelsDither& dither = {},
                                    LevelsNoise* noise = nullptr,
                                    LevelsForm form = LevelsForm::kShorter) {
  std::vector<uint8_t> bytes(MaxLevelsBytes(levels, in.size()));
  size_t size = 0;
  const LevelsNoise measured = EncodeLevels(
      levels, dither, form, in.data(), in.size(), bytes.data(), &size, nullptr);
  EXPECT_LE(size, bytes.size());
  bytes.resize(size);
  if (noise != nullptr) *noise = measured;
  return bytes;
}

inline Floats Through(Levels levels, const Floats& in,
                      const LevelsDither& dither = {},
                      LevelsNoise* noise = nullptr) {
  const std::vector<uint8_t> bytes = Encoded(levels, in, dither, noise);
  Floats out(in.size());
  EXPECT_TRUE(DecodeLevels(levels, dither, bytes, in.size(), out.data()));
  return out;
}

class LevelsTest : public ::testing::TestWithParam<Levels> {
 protected:
  Levels levels() const { return GetParam(); }
};

inline std::string NameOf(const ::testing::TestParamInfo<Levels>& info) {
  return std::to_string(static_cast<int>(info.param));
}

inline constexpr Levels kAllLevels[] = {Levels::k3, Levels::k5, Levels::k7,
                                        Levels::k15, Levels::k31};

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_TEST_LEVELS_H_
