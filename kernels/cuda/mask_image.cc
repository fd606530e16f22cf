#include "kernels/cuda/mask_image.h"

#include <bit>
#include <cstring>

#include "kernels/cuda/shapes.h"

namespace pactrain::cuda {

std::vector<uint32_t> MaskImage(const kernels::MaskPlan& plan) {
  static_assert(std::endian::native == std::endian::little);
  const auto elements = static_cast<uint32_t>(plan.elements());
  const uint32_t tiles = TilesOf(elements);
  std::vector<uint32_t> image(MaskImageBytes(elements) / sizeof(uint32_t), 0);
  const size_t words = (plan.elements() + 63) / 64;
  if (words > 0) std::memcpy(image.data(), plan.words(), words * 8);
  uint32_t* const offsets = image.data() + tiles * kTileWords;
  uint32_t kept = 0;
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    offsets[tile] = kept;
    for (uint32_t word = 0; word < kTileWords; ++word) {
      kept +=
          static_cast<uint32_t>(std::popcount(image[tile * kTileWords + word]));
    }
  }
  return image;
}

uint64_t MaskOffsetsAt(uint32_t elements) {
  return uint64_t{TilesOf(elements)} * kTileWords * sizeof(uint32_t);
}

uint64_t MaskImageBytes(uint32_t elements) {
  return uint64_t{TilesOf(elements)} * (kTileWords + 1) * sizeof(uint32_t);
}

}  // namespace pactrain::cuda
