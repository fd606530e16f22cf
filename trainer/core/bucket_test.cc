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

template <typename T>
Parts Whole(const std::vector<T>& data) {
  return Parts({{data.data(), data.size()}});
}

kernels::TileRange All(const Placement& placement) {
  return {0, placement.tiles()};
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
    WriteTiles(placement, All(placement), Whole(data), whole.data());
    kernels::TileRange piece = {0, 0};
    int count = 0;
    while (piece.end < placement.tiles()) {
      EXPECT_LT(placement.FilledBefore(piece.end), placement.elements);
      piece = PieceFrom(placement, piece.end);
      WriteTiles(placement, piece, Whole(data), pieces.data());
      ++count;
    }
    EXPECT_EQ(placement.FilledBefore(piece.end), placement.elements);
    EXPECT_EQ(count, masked ? 5 : 6);
    EXPECT_EQ(pieces, whole);
  }
}

// Cuts a bucket, each piece copied to memory of its own, at an odd address.
template <typename T>
class Cut {
 public:
  Cut(const std::vector<T>& data, const std::vector<size_t>& ends) {
    size_t begin = 0;
    for (const size_t end : ends) {
      pieces_.emplace_back(1 + end - begin);
      std::copy(data.begin() + begin, data.begin() + end,
                pieces_.back().begin() + 1);
      begin = end;
    }
  }
  Parts parts() const {
    std::vector<pt_part> parts;
    for (const std::vector<T>& piece : pieces_) {
      parts.push_back({piece.data() + 1, piece.size() - 1});
    }
    return Parts(parts);
  }

 private:
  std::vector<std::vector<T>> pieces_;
};

// Within a tile, at its edges, over several, one after the other, empty.
const std::vector<std::vector<size_t>> kCuts = {
    {1, kElements},
    {4096, kElements},
    {4095, 4096, kElements},
    {100, 100, 8192, 8193, kElements},
    {5000, 5001, 5002, 9999, kElements}};

TEST(BucketTest, PartsGiveWhatTheWholeBucketGives) {
  for (const auto& mask :
       {std::shared_ptr<const kernels::MaskPlan>(), EveryThird()}) {
    for (const bool count : {false, true}) {
      Placement placement = Place(Dtype::kFloat32, mask);
      placement.count_outside = count && mask != nullptr;
      Placement narrow = placement;
      narrow.bucket.dtype = Dtype::kBfloat16;
      std::vector<uint8_t> whole(128 + 4 * kElements), parts(whole.size());
      const uint64_t outside =
          WriteTiles(placement, All(placement), Whole(Floats()), whole.data());
      for (const auto& ends : kCuts) {
        parts.assign(parts.size(), 0);
        const Cut<float> wide_cut(Floats(), ends);
        EXPECT_EQ(WriteTiles(placement, All(placement), wide_cut.parts(),
                             parts.data()),
                  outside);
        EXPECT_EQ(parts, whole);
        parts.assign(parts.size(), 0);
        const Cut<uint16_t> narrow_cut(Bf16s(), ends);
        EXPECT_EQ(
            WriteTiles(narrow, All(narrow), narrow_cut.parts(), parts.data()),
            outside);
        EXPECT_EQ(parts, whole);
      }
    }
  }
}

TEST(BucketTest, ResultsReadTileByTileAreTheWholeResult) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    for (const auto& mask :
         {std::shared_ptr<const kernels::MaskPlan>(), EveryThird()}) {
      const Placement placement = Place(dtype, mask);
      std::vector<uint8_t> region(128 + 4 * kElements);
      Placement wide = placement;
      wide.bucket.dtype = Dtype::kFloat32;
      WriteTiles(wide, All(wide), Whole(Floats()), region.data());
      std::vector<float> whole(kElements, 7.0f), tiles(kElements, 8.0f);
      const bool is_wide = dtype == Dtype::kFloat32;
      ReadTiles(placement, All(placement), region.data(), 4, whole.data());
      size_t tile = 0;
      for (uint64_t filled = 0; tile < placement.tiles(); filled += 500) {
        const size_t end = placement.FilledTiles(tile, filled);
        EXPECT_LE(placement.FilledBefore(end), filled);
        ReadTiles(placement, {tile, end}, region.data(), 4, tiles.data());
        tile = end;
      }
      const size_t count = is_wide ? kElements : kElements / 2;
      whole.resize(count);
      tiles.resize(count);
      EXPECT_EQ(tiles, whole);
    }
  }
}

TEST(BucketTest, OverlapIsSeenToTheByte) {
  const std::vector<float> data(30);
  const Parts parts({{data.data() + 10, 3}, {data.data() + 20, 1}});  // 4.
  const auto overlaps = [&](size_t first, Dtype dtype = Dtype::kFloat32) {
    return parts.Overlaps(data.data() + first, dtype);
  };
  EXPECT_FALSE(overlaps(6));
  EXPECT_TRUE(overlaps(7));
  EXPECT_TRUE(overlaps(12));
  EXPECT_FALSE(overlaps(13));
  EXPECT_FALSE(overlaps(16));
  EXPECT_TRUE(overlaps(17));
  EXPECT_TRUE(overlaps(20));
  EXPECT_FALSE(overlaps(21));
  EXPECT_FALSE(overlaps(8, Dtype::kBfloat16));
  EXPECT_TRUE(overlaps(9, Dtype::kBfloat16));
  EXPECT_FALSE(Parts().Overlaps(data.data(), Dtype::kFloat32));
}

TEST(BucketTest, WriteThenReadOfOneRankIsTheBucketItself) {
  std::vector<uint8_t> region(128 + 4 * kElements);
  const std::vector<float> data = Floats();
  const Placement placement = Place(Dtype::kFloat32, nullptr);
  EXPECT_EQ(WriteTiles(placement, All(placement), Whole(data), region.data()),
            0u);
  std::vector<float> out(kElements);
  ReadTiles(placement, All(placement), region.data(), 1, out.data());
  EXPECT_EQ(out, data);
}

TEST(BucketTest, CompactedBucketIsExpandedAndDivided) {
  std::vector<uint8_t> region(128 + 4 * kElements);
  const Placement placement = Place(Dtype::kFloat32, EveryThird());
  WriteTiles(placement, All(placement), Whole(Floats()), region.data());
  std::vector<float> out(kElements, 7.0f);
  ReadTiles(placement, All(placement), region.data(), 4, out.data());
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
    WriteTiles(placement, All(placement), Whole(data), region.data());
    float first = 0;
    std::memcpy(&first, region.data() + 128, 4);
    EXPECT_EQ(first, Value(0));
    std::vector<uint16_t> out(kElements, 0x1234);
    ReadTiles(placement, All(placement), region.data(), 1, out.data());
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
  EXPECT_EQ(WriteTiles(placement, All(placement), Whole(data), region.data()),
            0u);
  placement.count_outside = true;
  EXPECT_EQ(WriteTiles(placement, All(placement), Whole(data), region.data()),
            2u);
  placement.bucket.dtype = Dtype::kBfloat16;
  EXPECT_EQ(WriteTiles(placement, All(placement), Whole(narrow), region.data()),
            2u);
}

TEST(BucketTest, XorWordsAreCopiedBitForBitAndNotDivided) {
  std::vector<uint8_t> region(128 + 4 * kElements);
  Placement placement = Place(Dtype::kFloat32, nullptr);
  placement.bucket.op = Op::kXor;
  std::vector<uint32_t> words(kElements, 0x7f800001);  // A signalling NaN.
  WriteTiles(placement, All(placement), Whole(words), region.data());
  std::vector<uint32_t> out(kElements);
  ReadTiles(placement, All(placement), region.data(), 4, out.data());
  EXPECT_THAT(out, Each(0x7f800001u));
}

TEST(BucketTest, EmptyBucketTouchesNothing) {
  Placement placement;
  EXPECT_EQ(WriteTiles(placement, All(placement), Parts(), nullptr), 0u);
  ReadTiles(placement, All(placement), nullptr, 2, nullptr);
}

}  // namespace
}  // namespace pactrain::trainer
