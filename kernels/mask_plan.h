// A fixed mask over the elements of one bucket, prepared once so that any tile
// of it can be compacted or expanded on its own.
//
// Tile t covers elements [t * kTileElements, ...); OutputOffset(t) is the
// number of kept elements before it, so tiles can be taken in any order and by
// any thread.
//
// Immutable after construction: thread-safe. Copies its bitmap.
#ifndef PACTRAIN_KERNELS_MASK_PLAN_H_
#define PACTRAIN_KERNELS_MASK_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pactrain::kernels {

class MaskPlan {
 public:
  static constexpr size_t kTileElements = 4096;
  // A tile that keeps at most so many is sparse: where they are is listed.
  static constexpr size_t kSparse = kTileElements / 48;

  // `bitmap` has (elements + 7) / 8 bytes; bit i (least significant first) of
  // byte i / 8 is 1 where element i is kept. Bits after the last element are
  // ignored. May be null if `elements` is 0.
  MaskPlan(const uint8_t* bitmap, size_t elements);

  size_t elements() const { return elements_; }
  size_t kept() const { return offsets_.back(); }
  size_t tiles() const { return offsets_.size() - 1; }
  // Kept elements before tile `tile`; 0 <= tile <= tiles().
  size_t OutputOffset(size_t tile) const { return offsets_[tile]; }
  bool IsSparse(size_t tile) const {
    return OutputOffset(tile + 1) - OutputOffset(tile) <= kSparse;
  }
  // Of a sparse tile: what it keeps, as elements after its first, in order.
  std::span<const uint16_t> PlacesIn(size_t tile) const {
    return std::span(places_).subspan(
        first_place_[tile], OutputOffset(tile + 1) - OutputOffset(tile));
  }
  // 64 elements a word, least significant first; zero after the last element.
  const uint64_t* words() const { return words_.data(); }

 private:
  size_t elements_;
  std::vector<uint64_t> words_;
  std::vector<size_t> offsets_;   // tiles() + 1 values.
  std::vector<uint16_t> places_;  // Of all sparse tiles, one after the other;
  std::vector<size_t> first_place_;  // by tile.
};

// Tiles of a plan, [first, end).
struct TileRange {
  size_t first;
  size_t end;
};
inline TileRange AllTiles(const MaskPlan& plan) { return {0, plan.tiles()}; }

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_MASK_PLAN_H_
