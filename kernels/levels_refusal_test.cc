#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/levels.h"
#include "kernels/test_levels.h"
#include "kernels/variants.h"

namespace pactrain::kernels {
namespace {

using LevelsRefusalTest = LevelsTest;

INSTANTIATE_TEST_SUITE_P(All, LevelsRefusalTest,
                         ::testing::ValuesIn(kAllLevels), NameOf);

TEST_P(LevelsRefusalTest, RefusesAScaleThatNoEncoderWrites) {
  const Floats in = Gaussian(1000, 1.0);
  for (uint16_t scale : {0x8000, 0xbf80, 0x7f80, 0xff80, 0xffc0, 0x7fc1, 0x0001,
                         0x0b7f, 0x7e81}) {
    std::vector<uint8_t> bytes = Encoded(levels(), in);
    std::memcpy(bytes.data() + 2, &scale, sizeof(scale));
    Floats out(in.size());
    for (const Variant* variant : Variants()) {
      EXPECT_FALSE(
          variant->decode_levels(levels(), {}, bytes, in.size(), out.data()))
          << scale;
    }
  }
}

TEST_P(LevelsRefusalTest, RefusesAWordThatIsTooLargeAndPaddingThatIsNotZero) {
  const size_t n = 1021;  // No multiple of any packing.
  const std::vector<uint8_t> bytes = Encoded(levels(), Signs(n));
  ASSERT_EQ(bytes.size(), MaxLevelsBytes(levels(), n));
  Floats out(n);
  EXPECT_TRUE(DecodeLevels(levels(), {}, bytes, n, out.data()));
  std::vector<uint8_t> bad = bytes;
  for (size_t i = 9; i < bad.size(); ++i) bad[i] = 0xff;
  EXPECT_FALSE(DecodeLevels(levels(), {}, bad, n, out.data()));
  // Of n + 1 elements, the last has a place that is padding for n.
  Floats longer = Signs(n + 1);
  longer.back() = 1.0f;  // Its code is not zero.
  bad = Encoded(levels(), longer);
  ASSERT_EQ(bad.size(), bytes.size());
  EXPECT_TRUE(DecodeLevels(levels(), {}, bad, n + 1, longer.data()));
  EXPECT_FALSE(DecodeLevels(levels(), {}, bad, n, out.data()));
}

TEST_P(LevelsRefusalTest, RefusesBytesThatAreMissingOrTooMany) {
  for (const Floats& in : {Gaussian(1021, 1.0), Signs(1021), Floats(1021)}) {
    std::vector<uint8_t> bytes = Encoded(levels(), in);
    Floats out(in.size());
    for (size_t n = 0; n < bytes.size(); ++n) {
      const std::vector<uint8_t> fewer(bytes.begin(), bytes.begin() + n);
      ASSERT_FALSE(DecodeLevels(levels(), {}, fewer, in.size(), out.data()))
          << n;
    }
    bytes.push_back(0);
    EXPECT_FALSE(DecodeLevels(levels(), {}, bytes, in.size(), out.data()));
  }
}

TEST_P(LevelsRefusalTest, EveryVariantTakesAnyBytesAlike) {
  std::mt19937 random(8);
  for (size_t n : {1, 40, 300, 1000, 5000}) {
    const std::vector<uint8_t> coded = Encoded(levels(), Gaussian(n, 1.0));
    const std::vector<uint8_t> packed =
        Encoded(levels(), Gaussian(n, 1.0), {}, nullptr, LevelsForm::kPacked);
    for (int draw = 0; draw < 400; ++draw) {
      std::vector<uint8_t> bytes = draw < 200 ? coded : packed;
      const size_t damaged = draw % 2 == 0 ? 1 + random() % 3 : bytes.size();
      for (size_t i = 0; i < damaged; ++i) {
        bytes[random() % bytes.size()] = random();
      }
      Floats a(n), b(n);
      const bool ok = ReferenceVariant().decode_levels(levels(), {1, 0}, bytes,
                                                       n, a.data());
      for (const Variant* variant : Variants()) {
        ASSERT_EQ(variant->decode_levels(levels(), {1, 0}, bytes, n, b.data()),
                  ok);
        if (ok) {
          ASSERT_EQ(std::memcmp(a.data(), b.data(), 4 * n), 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace pactrain::kernels
