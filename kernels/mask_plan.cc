#include "kernels/mask_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace pactrain::kernels {

MaskPlan::MaskPlan(const uint8_t* bitmap, size_t elements)
    : elements_(elements), words_((elements + 63) / 64, 0) {
  static_assert(std::endian::native == std::endian::little);
  if (elements > 0) std::memcpy(words_.data(), bitmap, (elements + 7) / 8);
  if (elements % 64 != 0) words_.back() &= (uint64_t{1} << elements % 64) - 1;

  constexpr size_t kTileWords = kTileElements / 64;
  const size_t tiles = (words_.size() + kTileWords - 1) / kTileWords;
  offsets_.reserve(tiles + 1);
  size_t kept = 0;
  for (size_t tile = 0; tile < tiles; ++tile) {
    offsets_.push_back(kept);
    const size_t end = std::min((tile + 1) * kTileWords, words_.size());
    for (size_t w = tile * kTileWords; w < end; ++w) {
      kept += std::popcount(words_[w]);
    }
  }
  offsets_.push_back(kept);

  size_t places = 0;
  first_place_.reserve(tiles);
  for (size_t tile = 0; tile < tiles; ++tile) {
    first_place_.push_back(places);
    if (IsSparse(tile)) places += OutputOffset(tile + 1) - OutputOffset(tile);
  }
  places_.reserve(places);
  for (size_t tile = 0; tile < tiles; ++tile) {
    if (!IsSparse(tile)) continue;
    const size_t begin = tile * kTileWords;
    const size_t end = std::min(begin + kTileWords, words_.size());
    for (size_t w = begin; w < end; ++w) {
      for (uint64_t word = words_[w]; word != 0; word &= word - 1) {
        places_.push_back(
            static_cast<uint16_t>((w - begin) * 64 + std::countr_zero(word)));
      }
    }
  }
}

}  // namespace pactrain::kernels
