#include "kernels/words.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace pactrain::kernels::words {
namespace {

constexpr size_t kTileWords = MaskPlan::kTileElements / kWord;
constexpr size_t kTileBytes = MaskPlan::kTileElements * sizeof(float);

// Words that have all their elements.
size_t WholeWords(const MaskPlan& plan) { return plan.elements() / kWord; }

size_t EndWord(const MaskPlan& plan, size_t end_tile) {
  return std::min(end_tile * kTileWords, (plan.elements() + kWord - 1) / kWord);
}

// What of word w lies inside the bucket.
size_t ElementsOf(const MaskPlan& plan, size_t w) {
  return std::min(kWord, plan.elements() - w * kWord);
}

uint64_t CountWord(const Buffers& buffers, size_t w, size_t elements) {
  uint64_t outside = 0;
  for (size_t i = 0; i < elements; ++i) {
    const auto bits = std::bit_cast<uint32_t>(buffers.in[w * kWord + i]);
    if ((buffers.words[w] >> i & 1) == 0 && (bits & 0x7fffffff) != 0) ++outside;
  }
  return outside;
}

void PackBits(const Buffers& buffers, Run run, size_t end) {
  for (; run.word < end; ++run.word) {
    const float* in = buffers.in + run.word * kWord;
    for (uint64_t word = buffers.words[run.word]; word != 0; word &= word - 1) {
      std::memcpy(buffers.out + run.packed++, in + std::countr_zero(word),
                  sizeof(float));
    }
  }
}

// Of a sparse tile.
void Gather(const MaskPlan& plan, size_t tile, const Buffers& buffers) {
  const float* in = buffers.in + tile * MaskPlan::kTileElements;
  float* out = buffers.out + plan.OutputOffset(tile);
  for (const uint16_t place : plan.PlacesIn(tile)) {
    std::memcpy(out++, in + place, sizeof(float));
  }
}

template <bool kCount>
uint64_t PackTiles(PackWords* pack, const MaskPlan& plan, TileRange tiles,
                   const Buffers& buffers) {
  uint64_t outside = 0;
  for (size_t tile = tiles.first; tile < tiles.end; ++tile) {
    if (!kCount && plan.IsSparse(tile)) {
      Gather(plan, tile, buffers);
      continue;
    }
    Run run = {tile * kTileWords, plan.OutputOffset(tile),
               plan.OutputOffset(tile + 1)};
    const size_t end = EndWord(plan, tile + 1);
    pack(buffers, &run, std::min(end, WholeWords(plan)) - run.word, &outside);
    if (kCount && run.word < end) {
      outside += CountWord(buffers, run.word, ElementsOf(plan, run.word));
    }
    PackBits(buffers, run, end);
  }
  return outside;
}

template <bool kDivide>
void SpreadBits(const MaskPlan& plan, const Buffers& buffers, Place at,
                size_t end, float divisor) {
  for (; at.word < end; ++at.word) {
    float* out = buffers.out + at.word * kWord;
    std::fill_n(out, ElementsOf(plan, at.word), 0.0f);
    for (uint64_t word = buffers.words[at.word]; word != 0; word &= word - 1) {
      const float* from = buffers.in + at.packed++;
      float* to = out + std::countr_zero(word);
      if constexpr (kDivide) {
        *to = *from / divisor;
      } else {
        std::memcpy(to, from, sizeof(float));
      }
    }
  }
}

template <bool kDivide>
void Spread(const Spreaders& spreaders, const MaskPlan& plan, TileRange tiles,
            const Buffers& buffers, float divisor) {
  const size_t end = EndWord(plan, tiles.end);
  Place at = {tiles.first * kTileWords, plan.OutputOffset(tiles.first)};
  const Place limit = {std::min(end, WholeWords(plan)),
                       plan.OutputOffset(tiles.end)};
  const bool stream =
      (tiles.end - tiles.first) * kTileBytes >= kStreamBytes &&
      reinterpret_cast<uintptr_t>(buffers.out) % kStreamAlignment == 0;
  at = (stream ? spreaders.stream : spreaders.spread)(buffers, at, limit,
                                                      divisor);
  SpreadBits<kDivide>(plan, buffers, at, end, divisor);
}

}  // namespace

void Compact(PackWords* pack, const MaskPlan& plan, TileRange tiles,
             const float* in, float* out) {
  PackTiles<false>(pack, plan, tiles, {plan.words(), in, out});
}

uint64_t CompactAndCount(PackWords* pack, const MaskPlan& plan, TileRange tiles,
                         const float* in, float* out) {
  return PackTiles<true>(pack, plan, tiles, {plan.words(), in, out});
}

uint64_t CountOutside(CountWords* count, const MaskPlan& plan, TileRange tiles,
                      const float* in) {
  const Buffers buffers = {plan.words(), in, nullptr};
  const size_t first = tiles.first * kTileWords;
  const size_t end = EndWord(plan, tiles.end);
  const size_t whole = std::max(first, std::min(end, WholeWords(plan)));
  uint64_t outside = count(buffers, first, whole);
  for (size_t w = whole; w < end; ++w) {
    outside += CountWord(buffers, w, ElementsOf(plan, w));
  }
  return outside;
}

void Expand(const Spreaders& spreaders, const MaskPlan& plan, TileRange tiles,
            const float* in, float* out) {
  Spread<false>(spreaders, plan, tiles, {plan.words(), in, out}, 1.0f);
}

void ExpandDivide(const Spreaders& spreaders, const MaskPlan& plan,
                  TileRange tiles, const float* in, float divisor, float* out) {
  Spread<true>(spreaders, plan, tiles, {plan.words(), in, out}, divisor);
}

}  // namespace pactrain::kernels::words
