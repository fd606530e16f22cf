#include "trainer/core/bucket.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bf16.h"

namespace pactrain::trainer {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr size_t kElements = 10000;  // More than two tiles.

std::shared_ptr<const kernels::MaskPlan> EveryThird() {
  std::vector<uint8_t> bitmap((kElements + 7) / 8, 0);
  for (size_t i = 0; i < kElements; i += 3) bitmap[i / 8] |= 1 << i % 8;
  return std::make_shared<kernels::MaskPlan>(bitmap.data(), kElements);
}

Placement Place(Dtype dtype, std::shared_ptr<const kernels::MaskPlan> mask) {
  Placement placement;
  placement.bucket.elements = kElements;
  placement.bucket.dtype = dtype;
  placement.offset = 128;
  placement.mask = mask;
  placement.elements = mask == nullptr ? kElements : mask->kept();
  return placement;
}

// Small integers: exact in bf16, too.
float Value(size_t i) { return static_cast<float>(i % 200) - 100.0f; }

std::vector<float> Floats() {
  std::vector<float> data(kElements);
  for (size_t i = 0; i < kElements; ++i) data[i] = Value(i);
  return data;
}

std::vector<uint16_t> Bf16s() {
  std::vector<uint16_t> data(kElements);
  kernels::ToBf16(Floats().data(), kElements, data.data());
  return data;
}

// Large enough for several pieces; nothing is kept of the last tiles.
Placement Large(bool masked) {
  constexpr size_t kLarge = 700'001;
  Placement placement;
  placement.bucket.elements = placement.elements = kLarge;
  if (!masked) return placement;
  std::vector<uint8_t> bitmap(kLarge / 8 + 1, 0xff);
  std::fill(bitmap.begin() + 600'000 / 8, bitmap.end(), 0);
  placement.mask = std::make_shared<kernels::MaskPlan>(bitmap.data(), kLarge);
  placement.elements = placement.mask->kept();
  return placement;
}

TEST(BucketTest, PiecesWriteWhatTheWholeBucketIsAndOnlyTheLastFillsIt) {
  for (const bool masked : {false, true}) {
    const Placement placement = Large(masked);
    std::vector<float> data(placement.bucket.elements);
    for (size_t i = 0; i < data.size(); ++i) data[i] = Value(i);
    std::vector<uint8_t> whole(placement.bytes()), pieces(placement.bytes());
    WriteBucket(placement, data.data(), whole.data());
    kernels::TileRange piece = {0, 0};
    int count = 0;
    while (piece.end < placement.tiles()) {
      EXPECT_LT(placement.FilledBefore(piece.end), placement.elements);
      piece = PieceFrom(placement, piece.end);
      WriteTiles(placement, piece, data.data(), pieces.data());
      ++count;
    }
    EXPECT_EQ(placement.FilledBefore(piece.end), placement.elements);
    EXPECT_EQ(count, 3);
    EXPECT_EQ(pieces, whole);
  }
}

TEST(BucketTest, WriteThenReadOfOneRankIsTheBucketItself) {
  std::vector<uint8_t> region(128 + 4 * kElements);
  const std::vector<float> data = Floats();
  const Placement placement = Place(Dtype::kFloat32, nullptr);
  EXPECT_EQ(WriteBucket(placement, data.data(), region.data()), 0u);
  std::vector<float> out(kElements);
  ReadBucket(placement, region.data(), 1, out.data());
  EXPECT_EQ(out, data);
}

TEST(BucketTest, CompactedBucketIsExpandedAndDivided) {
  std::vector<uint8_t> region(128 + 4 * kElements);
  const Placement placement = Place(Dtype::kFloat32, EveryThird());
  WriteBucket(placement, Floats().data(), region.data());
  std::vector<float> out(kElements, 7.0f);
  ReadBucket(placement, region.data(), 4, out.data());
  for (size_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(out[i], i % 3 == 0 ? Value(i) / 4 : 0.0f) << i;
  }
}

TEST(BucketTest, Bf16TravelsAsFp32AndComesBackAsBf16) {
  const std::vector<uint16_t> data = Bf16s();
  for (const auto& mask :
       {std::shared_ptr<const kernels::MaskPlan>(), EveryThird()}) {
    std::vector<uint8_t> region(128 + 4 * kElements);
    const Placement placement = Place(Dtype::kBfloat16, mask);
    WriteBucket(placement, data.data(), region.data());
    float first = 0;
    std::memcpy(&first, region.data() + 128, 4);
    EXPECT_EQ(first, Value(0));
    std::vector<uint16_t> out(kElements, 0x1234);
    ReadBucket(placement, region.data(), 1, out.data());
    for (size_t i = 0; i < kElements; ++i) {
      const bool kept = mask == nullptr || i % 3 == 0;
      ASSERT_EQ(out[i], kept ? data[i] : 0) << i;
    }
  }
}

TEST(BucketTest, ElementsOutsideTheMaskAreCountedWhenAskedFor) {
  std::vector<uint8_t> region(128 + 4 * kElements);
  std::vector<float> data(kElements, 0.0f);
  data[0] = 1.0f;     // Kept.
  data[1] = 2.0f;     // Not kept.
  data[9998] = 3.0f;  // Not kept, in the last tile.
  std::vector<uint16_t> narrow(kElements);
  kernels::ToBf16(data.data(), kElements, narrow.data());

  Placement placement = Place(Dtype::kFloat32, EveryThird());
  EXPECT_EQ(WriteBucket(placement, data.data(), region.data()), 0u);
  placement.count_outside = true;
  EXPECT_EQ(WriteBucket(placement, data.data(), region.data()), 2u);
  placement.bucket.dtype = Dtype::kBfloat16;
  EXPECT_EQ(WriteBucket(placement, narrow.data(), region.data()), 2u);
}

TEST(BucketTest, XorWordsAreCopiedBitForBitAndNotDivided) {
  std::vector<uint8_t> region(128 + 4 * kElements);
  Placement placement = Place(Dtype::kFloat32, nullptr);
  placement.bucket.op = Op::kXor;
  std::vector<uint32_t> words(kElements, 0x7f800001);  // A signalling NaN.
  WriteBucket(placement, words.data(), region.data());
  std::vector<uint32_t> out(kElements);
  ReadBucket(placement, region.data(), 4, out.data());
  EXPECT_THAT(out, Each(0x7f800001u));
}

TEST(BucketTest, EmptyBucketTouchesNothing) {
  Placement placement;
  EXPECT_EQ(WriteBucket(placement, nullptr, nullptr), 0u);
  ReadBucket(placement, nullptr, 2, nullptr);
}

}  // namespace
}  // namespace pactrain::trainer
