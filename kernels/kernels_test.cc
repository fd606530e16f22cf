#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bf16.h"
#include "kernels/compact.h"
#include "kernels/expand.h"
#include "kernels/mask_plan.h"
#include "kernels/nonzero.h"
#include "kernels/sum.h"
#include "kernels/variants.h"
#include "kernels/words.h"

namespace pactrain::kernels {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kGuard = 0xdeadbeef;

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

// Ordinary numbers mixed with what is easily lost: -0, denormals, Inf, NaNs.
std::vector<uint32_t> RandomBits(std::mt19937& random, size_t elements) {
  static constexpr uint32_t kSpecial[] = {
      0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x7f800000, 0xff800000,
      0x7fc00000, 0xffc12345, 0x7f800001, 0x7f7fffff, 0x3f808000, 0x3f818000};
  std::vector<uint32_t> bits(elements);
  for (uint32_t& b : bits) {
    const uint32_t r = random();
    b = r % 4 == 0 ? kSpecial[r / 4 % std::size(kSpecial)]
                   : std::bit_cast<uint32_t>(
                         static_cast<float>(static_cast<int32_t>(random())) /
                         65536.0f);
  }
  return bits;
}

std::vector<uint8_t> RandomMask(std::mt19937& random, size_t elements,
                                double density) {
  std::vector<uint8_t> bitmap((elements + 7) / 8, 0);
  std::bernoulli_distribution kept(density);
  for (size_t i = 0; i < elements; ++i) {
    if (kept(random)) bitmap[i / 8] |= 1 << i % 8;
  }
  // Bits after the end must not matter.
  if (elements % 8 != 0) bitmap.back() |= 0xff << elements % 8;
  return bitmap;
}

// Floats at an address that is not a multiple of 16, between guard words.
class Buffer {
 public:
  explicit Buffer(size_t elements)
      : storage_(elements + 33, kGuard), elements_(elements) {}
  explicit Buffer(const std::vector<uint32_t>& bits) : Buffer(bits.size()) {
    if (!bits.empty()) std::memcpy(data(), bits.data(), 4 * bits.size());
  }
  float* data() { return reinterpret_cast<float*>(storage_.data() + 1); }
  const std::vector<uint32_t>& storage() const { return storage_; }
  bool GuardsIntact() const {
    if (storage_[0] != kGuard) return false;
    for (size_t i = elements_ + 1; i < storage_.size(); ++i) {
      if (storage_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  std::vector<uint32_t> storage_;
  size_t elements_;
};

struct Case {
  size_t elements;
  double density;
};

class KernelsTest : public ::testing::TestWithParam<Case> {
 protected:
  KernelsTest()
      : bitmap_(RandomMask(random_, GetParam().elements, GetParam().density)),
        plan_(bitmap_.data(), GetParam().elements) {}

  std::mt19937 random_{7};
  std::vector<uint8_t> bitmap_;
  MaskPlan plan_;
};

INSTANTIATE_TEST_SUITE_P(
    SizesAndDensities, KernelsTest, ::testing::ValuesIn([] {
      std::vector<Case> cases;
      for (size_t elements :
           {0, 1, 7, 8, 9, 63, 64, 65, 1000, 4095, 4096, 4097, 3 * 4096 + 17}) {
        for (double density : {0.0, 0.01, 0.3, 0.5, 0.97, 1.0}) {
          cases.push_back({elements, density});
        }
      }
      return cases;
    }()),
    [](const auto& info) {
      return std::to_string(info.param.elements) + "_" +
             std::to_string(static_cast<int>(100 * info.param.density));
    });

TEST_P(KernelsTest, TileOffsetsCountKeptElementsBefore) {
  size_t kept = 0;
  for (size_t i = 0; i < plan_.elements(); ++i) {
    if (i % MaskPlan::kTileElements == 0) {
      EXPECT_EQ(plan_.OutputOffset(i / MaskPlan::kTileElements), kept);
    }
    kept += bitmap_[i / 8] >> i % 8 & 1;
  }
  EXPECT_EQ(plan_.kept(), kept);
}

TEST_P(KernelsTest, ReferenceCompactTakesKeptElementsInOrder) {
  const std::vector<uint32_t> bits = RandomBits(random_, plan_.elements());
  std::vector<uint32_t> expected;
  uint64_t outside = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bitmap_[i / 8] >> i % 8 & 1) {
      expected.push_back(bits[i]);
    } else if (bits[i] != 0 && bits[i] != 0x80000000) {
      ++outside;
    }
  }
  Buffer in(bits), out(plan_.kept());
  EXPECT_EQ(
      reference::CompactAndCount(plan_, AllTiles(plan_), in.data(), out.data()),
      outside);
  EXPECT_EQ(out.storage(), Buffer(expected).storage());
}

TEST_P(KernelsTest, EveryVariantEqualsReferenceBitForBit) {
  const Variant& plain = ReferenceVariant();
  const size_t n = plan_.elements();
  const TileRange all = AllTiles(plan_);
  Buffer in(RandomBits(random_, n)), packed(RandomBits(random_, plan_.kept()));
  for (const Variant* variant : Variants()) {
    SCOPED_TRACE(variant->name);
    Buffer a(plan_.kept()), b(plan_.kept());
    plain.compact(plan_, all, in.data(), a.data());
    variant->compact(plan_, all, in.data(), b.data());
    EXPECT_EQ(a.storage(), b.storage());
    Buffer c(plan_.kept());
    EXPECT_EQ(plain.count_outside(plan_, all, in.data()),
              variant->compact_and_count(plan_, all, in.data(), c.data()));
    EXPECT_EQ(a.storage(), c.storage());
    EXPECT_EQ(plain.count_outside(plan_, all, in.data()),
              variant->count_outside(plan_, all, in.data()));

    Buffer d(n), e(n);
    plain.expand(plan_, all, packed.data(), d.data());
    variant->expand(plan_, all, packed.data(), e.data());
    EXPECT_EQ(d.storage(), e.storage());
    plain.expand_divide(plan_, all, packed.data(), 3.0f, d.data());
    variant->expand_divide(plan_, all, packed.data(), 3.0f, e.data());
    EXPECT_EQ(d.storage(), e.storage());
    plain.divide(in.data(), n, 6.0f, d.data());
    variant->divide(in.data(), n, 6.0f, e.data());
    EXPECT_EQ(d.storage(), e.storage());
    EXPECT_TRUE(e.GuardsIntact());
  }
}

TEST_P(KernelsTest, EveryVariantTakesTilesInAnyOrder) {
  Buffer in(RandomBits(random_, plan_.elements()));
  for (const Variant* variant : Variants()) {
    Buffer whole(plan_.kept()), by_tile(plan_.kept());
    const uint64_t count = variant->compact_and_count(plan_, AllTiles(plan_),
                                                      in.data(), whole.data());
    uint64_t tile_count = 0;
    for (size_t t = plan_.tiles(); t-- > 0;) {
      tile_count += variant->compact_and_count(plan_, {t, t + 1}, in.data(),
                                               by_tile.data());
    }
    EXPECT_EQ(tile_count, count);
    EXPECT_EQ(by_tile.storage(), whole.storage());
    // Not counting, sparse tiles take another way.
    Buffer gathered(plan_.kept());
    for (size_t t = plan_.tiles(); t-- > 0;) {
      variant->compact(plan_, {t, t + 1}, in.data(), gathered.data());
    }
    EXPECT_EQ(gathered.storage(), whole.storage());

    Buffer back(plan_.elements()), back_by_tile(plan_.elements());
    variant->expand(plan_, AllTiles(plan_), whole.data(), back.data());
    for (size_t t = plan_.tiles(); t-- > 0;) {
      variant->expand(plan_, {t, t + 1}, whole.data(), back_by_tile.data());
    }
    EXPECT_EQ(back_by_tile.storage(), back.storage());
  }
}

TEST_P(KernelsTest, ExpandUndoesCompactAndZeroesTheRest) {
  const std::vector<uint32_t> bits = RandomBits(random_, plan_.elements());
  std::vector<uint32_t> expected = bits;
  for (size_t i = 0; i < bits.size(); ++i) {
    if ((bitmap_[i / 8] >> i % 8 & 1) == 0) expected[i] = 0;
  }
  Buffer in(bits), packed(plan_.kept()), out(plan_.elements());
  Compact(plan_, AllTiles(plan_), in.data(), packed.data());
  Expand(plan_, AllTiles(plan_), packed.data(), out.data());
  EXPECT_EQ(out.storage(), Buffer(expected).storage());
}

class SizeTest : public ::testing::TestWithParam<size_t> {
 protected:
  std::mt19937 random_{11};
};

INSTANTIATE_TEST_SUITE_P(Sizes, SizeTest,
                         ::testing::Values(0, 1, 7, 8, 9, 1000, 4099));

TEST_P(SizeTest, SumOfEveryVariantIsTheSumInOrder) {
  for (size_t buffers : {1, 2, 3, 7}) {
    std::vector<Buffer> in;
    std::vector<const float*> pointers;
    for (size_t b = 0; b < buffers; ++b) {
      in.emplace_back(RandomBits(random_, GetParam()));
    }
    for (Buffer& b : in) pointers.push_back(b.data());
    std::vector<uint32_t> expected(GetParam());
    for (size_t i = 0; i < GetParam(); ++i) {
      float sum = in[0].data()[i];
      for (size_t b = 1; b < buffers; ++b) sum = sum + in[b].data()[i];
      expected[i] = std::isnan(sum) ? 0x7fc00000 : std::bit_cast<uint32_t>(sum);
    }
    for (const Variant* variant : Variants()) {
      Buffer out(GetParam());
      variant->sum(pointers.data(), buffers, GetParam(), out.data());
      EXPECT_EQ(out.storage(), Buffer(expected).storage()) << variant->name;
    }
  }
}

TEST_P(SizeTest, SumMayWriteOverItsFirstBuffer) {
  Buffer a(RandomBits(random_, GetParam())), b(RandomBits(random_, GetParam()));
  Buffer expected(GetParam());
  const float* in[] = {a.data(), b.data()};
  reference::Sum(in, 2, GetParam(), expected.data());
  Sum(in, 2, GetParam(), a.data());
  EXPECT_EQ(a.storage(), expected.storage());
}

TEST_P(SizeTest, Bf16OfEveryVariantEqualsReference) {
  Buffer in(RandomBits(random_, GetParam()));
  std::vector<uint16_t> a(GetParam() + 9, 0xabcd);
  Buffer c(GetParam());
  reference::ToBf16(in.data(), GetParam(), a.data() + 1);
  reference::FromBf16(a.data() + 1, GetParam(), c.data());
  for (const Variant* variant : Variants()) {
    std::vector<uint16_t> b(a.size(), 0xabcd);
    variant->to_bf16(in.data(), GetParam(), b.data() + 1);
    EXPECT_EQ(a, b) << variant->name;
    Buffer d(GetParam());
    variant->from_bf16(a.data() + 1, GetParam(), d.data());
    EXPECT_EQ(c.storage(), d.storage()) << variant->name;
  }
}

// Tiles of which much, little or nothing is kept take different ways.
TEST(CompactTest, DenseSparseAndEmptyTilesMayFollowEachOther) {
  constexpr size_t kTile = MaskPlan::kTileElements;
  constexpr double kDensities[] = {0.5, 0.01, 0.0, 1.0, 0.02, 0.021, 0.01, 0.9};
  std::mt19937 random(3);
  std::vector<uint8_t> bitmap;
  for (double density : kDensities) {
    const std::vector<uint8_t> tile = RandomMask(random, kTile, density);
    bitmap.insert(bitmap.end(), tile.begin(), tile.end());
  }
  const MaskPlan plan(bitmap.data(), 8 * bitmap.size() - 100);
  Buffer in(RandomBits(random, plan.elements())), expected(plan.kept());
  Buffer back(plan.elements());
  reference::Compact(plan, AllTiles(plan), in.data(), expected.data());
  reference::Expand(plan, AllTiles(plan), expected.data(), back.data());
  for (const Variant* variant : Variants()) {
    SCOPED_TRACE(variant->name);
    Buffer packed(plan.kept()), out(plan.elements());
    variant->compact(plan, AllTiles(plan), in.data(), packed.data());
    EXPECT_EQ(packed.storage(), expected.storage());
    variant->expand(plan, AllTiles(plan), packed.data(), out.data());
    EXPECT_EQ(out.storage(), back.storage());
  }
}

TEST(MaskPlanTest, SparseTilesListWhatTheyKeep) {
  constexpr size_t kTile = MaskPlan::kTileElements;
  constexpr size_t kMost = MaskPlan::kSparse;
  // So many in the first tile, its last element among them; one more; none; the
  // end.
  std::vector<uint8_t> bitmap(3 * kTile / 8 + 2);
  const auto keep = [&](size_t i) { bitmap[i / 8] |= 1 << i % 8; };
  std::vector<uint16_t> first;
  for (size_t i = 1; i < kMost; ++i) first.push_back(40 * i);
  first.push_back(kTile - 1);
  for (uint16_t place : first) keep(place);
  for (size_t i = 0; i <= kMost; ++i) keep(kTile + 30 * i);
  keep(3 * kTile + 7);
  keep(3 * kTile + 10);
  const MaskPlan plan(bitmap.data(), 3 * kTile + 10);  // The last one is not.
  ASSERT_EQ(plan.tiles(), 4u);
  ASSERT_TRUE(plan.IsSparse(0));
  EXPECT_THAT(plan.PlacesIn(0), testing::ElementsAreArray(first));
  EXPECT_FALSE(plan.IsSparse(1));
  ASSERT_TRUE(plan.IsSparse(2));
  EXPECT_TRUE(plan.PlacesIn(2).empty());
  ASSERT_TRUE(plan.IsSparse(3));
  ASSERT_EQ(plan.PlacesIn(3).size(), 1u);
  EXPECT_EQ(plan.PlacesIn(3)[0], 7);
}

// Large and aligned, results go past the caches; large and not aligned not.
TEST(ExpandTest, LargeBucketsEqualReferenceAtAnyAlignment) {
  const size_t elements = words::kStreamBytes / sizeof(float) + 77;
  std::mt19937 random(5);
  const std::vector<uint8_t> bitmap = RandomMask(random, elements, 0.3);
  const MaskPlan plan(bitmap.data(), elements);
  Buffer packed(RandomBits(random, plan.kept()));
  std::vector<float> expected(elements), storage(elements + 32);
  void* start = storage.data();
  size_t space = storage.size() * sizeof(float);
  ASSERT_NE(std::align(words::kStreamAlignment, 4 * elements, start, space),
            nullptr);
  for (float divisor : {1.0f, 3.0f}) {
    reference::ExpandDivide(plan, AllTiles(plan), packed.data(), divisor,
                            expected.data());
    for (const Variant* variant : Variants()) {
      for (size_t offset : {0, 1}) {
        float* out = static_cast<float*>(start) + offset;
        std::fill(storage.begin(), storage.end(), 5.0f);
        variant->expand_divide(plan, AllTiles(plan), packed.data(), divisor,
                               out);
        EXPECT_EQ(std::memcmp(out, expected.data(), 4 * elements), 0)
            << variant->name << " at " << offset;
        EXPECT_EQ(out[elements], 5.0f);
      }
    }
  }
}

uint16_t ToBf16(float value) {
  uint16_t out = 0;
  reference::ToBf16(&value, 1, &out);
  return out;
}

TEST(Bf16Test, RoundsTiesToEven) {
  EXPECT_EQ(ToBf16(FromBits(0x3f808000)), 0x3f80);  // Tie, even below.
  EXPECT_EQ(ToBf16(FromBits(0x3f818000)), 0x3f82);  // Tie, even above.
  EXPECT_EQ(ToBf16(FromBits(0x3f808001)), 0x3f81);
  EXPECT_EQ(ToBf16(FromBits(0x3f807fff)), 0x3f80);
}

TEST(Bf16Test, OverflowIsInfinityAndNaNStaysNaN) {
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(ToBf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(ToBf16(FromBits(0x7f800001)), 0x7fc0);  // Payload in the low half.
  EXPECT_EQ(ToBf16(FromBits(0xffffffff)), 0xffff);
  EXPECT_EQ(ToBf16(-0.0f), 0x8000);
}

TEST(Bf16Test, ThereAndBackIsExact) {
  for (uint32_t word = 0; word <= 0xffff; ++word) {
    const auto in = static_cast<uint16_t>(word);
    float wide = 0;
    FromBf16(&in, 1, &wide);
    const bool nan = (word & 0x7fff) > 0x7f80;
    EXPECT_EQ(ToBf16(wide), nan ? word | 0x40 : word);
  }
}

TEST(ExpandTest, DividesKeptElementsAndWritesPositiveZerosElsewhere) {
  const uint8_t bitmap = 0b1010;
  const MaskPlan plan(&bitmap, 5);
  const float in[] = {1.0f, -2.0f};
  float out[5];
  ExpandDivide(plan, AllTiles(plan), in, 4.0f, out);
  EXPECT_THAT(out, ElementsAre(0.0f, 0.25f, 0.0f, -0.5f, 0.0f));
  for (float x : {out[0], out[2], out[4]}) EXPECT_FALSE(std::signbit(x));
}

TEST(CompactTest, CountsDenormalsNaNAndInfOutsideButNotNegativeZero) {
  const uint8_t bitmap = 0b00001;
  const MaskPlan plan(&bitmap, 5);
  const float in[] = {5.0f, -0.0f, FromBits(1), FromBits(0x7fc00000),
                      FromBits(0xff800000)};
  EXPECT_EQ(CountOutside(plan, AllTiles(plan), in), 3u);
}

TEST(NonZeroTest, EveryVariantFollowsWhatIsZeroAndCountsBothWays) {
  std::mt19937 random(7);
  for (const Variant* variant : Variants()) {
    for (size_t elements : {0, 1, 63, 64, 65, 128, 1000}) {
      std::vector<uint64_t> words((elements + 63) / 64 + 1, 0);
      words.back() = kGuard;
      std::vector<bool> before(elements, false);
      for (int round = 0; round < 3; ++round) {
        Buffer in(RandomBits(random, elements));
        const ZeroChanges changes =
            variant->update_non_zero(in.data(), elements, words.data());
        ZeroChanges wanted;
        for (size_t i = 0; i < elements; ++i) {
          const bool now =
              (std::bit_cast<uint32_t>(in.data()[i]) & 0x7fffffff) != 0;
          wanted.gone += before[i] && !now;
          wanted.back += now && !before[i];
          EXPECT_EQ(words[i / 64] >> i % 64 & 1, now) << variant->name;
          before[i] = now;
        }
        EXPECT_EQ(changes.gone, wanted.gone) << variant->name;
        EXPECT_EQ(changes.back, wanted.back) << variant->name;
      }
      EXPECT_EQ(words.back(), kGuard) << variant->name;
      if (elements % 64 != 0) {
        EXPECT_EQ(words[elements / 64] >> elements % 64, 0u) << variant->name;
      }
    }
  }
}

}  // namespace
}  // namespace pactrain::kernels
