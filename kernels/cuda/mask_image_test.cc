#include "kernels/cuda/mask_image.h"

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/shapes.h"

namespace pactrain::cuda {
namespace {

TEST(MaskImageTest, HasEachBitAndTheKeptElementsBeforeEachTile) {
  std::mt19937 random(3);
  for (uint32_t elements : {0, 1, 32, 1023, 1024, 1025, 5000}) {
    std::vector<uint8_t> bitmap((elements + 7) / 8);
    // Bits after the last element, too.
    for (uint8_t& byte : bitmap) byte = static_cast<uint8_t>(random());
    const std::vector<uint32_t> image =
        MaskImage(kernels::MaskPlan(bitmap.data(), elements));
    ASSERT_EQ(image.size() * 4, MaskImageBytes(elements));
    const uint32_t* offsets = image.data() + MaskOffsetsAt(elements) / 4;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < TilesOf(elements) * kTileElements; ++i) {
      if (i % kTileElements == 0) {
        EXPECT_EQ(offsets[i / kTileElements], kept);
      }
      const bool wanted = i < elements && (bitmap[i / 8] >> i % 8 & 1) != 0;
      EXPECT_EQ((image[i / 32] >> i % 32 & 1) != 0, wanted) << i;
      kept += wanted;
    }
  }
}

TEST(MaskImageTest, OfTheLargestBucketNothingOverflows) {
  EXPECT_EQ(TilesOf(kMaxElements), 1u << 21);
  EXPECT_EQ(BlocksOf(kMaxElements), 1u << 18);
  EXPECT_EQ(MaskOffsetsAt(kMaxElements), 1u << 28);
  EXPECT_EQ(MaskImageBytes(kMaxElements), (1u << 28) + (1u << 23));
}

}  // namespace
}  // namespace pactrain::cuda
