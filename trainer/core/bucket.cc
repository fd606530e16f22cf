#include "trainer/core/bucket.h"

#include <algorithm>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/compact.h"
#include "kernels/expand.h"

namespace pactrain::trainer {
namespace {

using kernels::MaskPlan;
using kernels::TileRange;

constexpr size_t kTile = MaskPlan::kTileElements;
// Of the slot, half a MiB: many frames, so that a message costs next to
// nothing, and little enough for a step's first frames to leave early.
constexpr uint64_t kPieceElements = 128 << 10;

uint64_t CompactTiles(const Placement& placement, TileRange tiles,
                      const float* in, float* out) {
  if (placement.count_outside) {
    return kernels::CompactAndCount(*placement.mask, tiles, in, out);
  }
  kernels::Compact(*placement.mask, tiles, in, out);
  return 0;
}

// bf16 goes through one tile of fp32 at a time. The kernels take whole buckets,
// so the tile gets a plan of its own.
MaskPlan PlanOf(const MaskPlan& mask, size_t tile, size_t elements) {
  return MaskPlan(
      reinterpret_cast<const uint8_t*>(mask.words() + tile * kTile / 64),
      elements);
}

uint64_t WriteBf16(const Placement& placement, TileRange tiles,
                   const uint16_t* in, float* out) {
  const size_t elements = placement.bucket.elements;
  if (placement.mask == nullptr) {
    const uint64_t first = placement.FilledBefore(tiles.first);
    kernels::FromBf16(in + first, placement.FilledBefore(tiles.end) - first,
                      out + first);
    return 0;
  }
  const MaskPlan& mask = *placement.mask;
  float wide[kTile];
  uint64_t outside = 0;
  for (size_t tile = tiles.first; tile < tiles.end; ++tile) {
    const size_t first = tile * kTile;
    const size_t count = std::min(kTile, elements - first);
    kernels::FromBf16(in + first, count, wide);
    const MaskPlan part = PlanOf(mask, tile, count);
    const TileRange all = kernels::AllTiles(part);
    float* to = out + mask.OutputOffset(tile);
    if (placement.count_outside) {
      outside += kernels::CompactAndCount(part, all, wide, to);
    } else {
      kernels::Compact(part, all, wide, to);
    }
  }
  return outside;
}

// `data`: where the bucket would begin if all of it lay as these tiles do.
uint64_t WriteRun(const Placement& placement, TileRange tiles, const void* data,
                  uint8_t* slot) {
  float* out = reinterpret_cast<float*>(slot + placement.offset);
  if (placement.bucket.dtype == Dtype::kBfloat16) {
    return WriteBf16(placement, tiles, static_cast<const uint16_t*>(data), out);
  }
  const auto* in = static_cast<const float*>(data);
  if (placement.mask != nullptr) {
    return CompactTiles(placement, tiles, in, out);
  }
  const uint64_t first = placement.FilledBefore(tiles.first);
  std::memcpy(out + first, in + first,
              4 * (placement.FilledBefore(tiles.end) - first));
  return 0;
}

void ReadBf16(const Placement& placement, TileRange tiles, const float* in,
              float divisor, uint16_t* out) {
  const size_t elements = placement.bucket.elements;
  float wide[kTile];
  for (size_t tile = tiles.first; tile < tiles.end; ++tile) {
    const size_t first = tile * kTile;
    const size_t count = std::min(kTile, elements - first);
    if (placement.mask == nullptr) {
      kernels::Divide(in + first, count, divisor, wide);
    } else {
      const MaskPlan part = PlanOf(*placement.mask, tile, count);
      kernels::ExpandDivide(part, kernels::AllTiles(part),
                            in + placement.mask->OutputOffset(tile), divisor,
                            wide);
    }
    kernels::ToBf16(wide, count, out + first);
  }
}

uint64_t Width(Dtype dtype) { return dtype == Dtype::kBfloat16 ? 2 : 4; }

// The pointer that is `elements` before `data`, maybe in front of its memory:
// an address to count from, not to read.
const void* Before(const void* data, uint64_t elements, Dtype dtype) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(data) -
                                       elements * Width(dtype));
}

// Copies the elements [first, first + count), which begin in `part`.
void Gather(const Parts& parts, size_t part, uint64_t first, uint64_t count,
            Dtype dtype, uint8_t* out) {
  const uint64_t width = Width(dtype);
  const uint64_t end = first + count;
  for (; first < end; ++part) {
    const uint64_t to = std::min(end, parts.end(part));
    const auto* data = static_cast<const uint8_t*>(parts.data(part));
    std::memcpy(out, data + (first - parts.begin(part)) * width,
                (to - first) * width);
    out += (to - first) * width;
    first = to;
  }
}

// Both begin with the bucket's first kept element.
void CopyKept(const Placement& placement, TileRange tiles, const void* from,
              void* to) {
  const uint64_t first = 4 * placement.FilledBefore(tiles.first);
  const uint64_t bytes = 4 * placement.FilledBefore(tiles.end) - first;
  if (bytes == 0) return;
  std::memcpy(static_cast<uint8_t*>(to) + first,
              static_cast<const uint8_t*>(from) + first, bytes);
}

}  // namespace

size_t Placement::tiles() const {
  return (bucket.elements + kTile - 1) / kTile;
}

uint64_t Placement::FilledBefore(size_t tile) const {
  return mask == nullptr ? std::min<uint64_t>(elements, tile * kTile)
                         : mask->OutputOffset(tile);
}

size_t Placement::FilledTiles(size_t first, uint64_t filled) const {
  while (first < tiles() && FilledBefore(first + 1) <= filled) ++first;
  return first;
}

TileRange PieceFrom(const Placement& placement, size_t first) {
  const uint64_t from = placement.FilledBefore(first);
  size_t end = first;
  for (; end < placement.tiles(); ++end) {
    const uint64_t to = placement.FilledBefore(end);
    // Tiles in which nothing is kept belong to the piece that fills the bucket.
    if (to >= from + kPieceElements && to < placement.elements) break;
  }
  return {first, end};
}

Parts::Parts(const std::vector<pt_part>& parts) {
  parts_.reserve(parts.size());
  ends_.reserve(parts.size());
  for (const pt_part& part : parts) {
    if (part.elements == 0) continue;
    const uint64_t begin = elements();
    parts_.push_back(part);
    ends_.push_back(begin + part.elements);
  }
}

size_t Parts::Find(uint64_t element) const {
  return static_cast<size_t>(
      std::upper_bound(ends_.begin(), ends_.end(), element) - ends_.begin());
}

bool Parts::Overlaps(const void* memory, Dtype dtype) const {
  const auto first = reinterpret_cast<uintptr_t>(memory);
  const uint64_t bytes = elements() * Width(dtype);
  for (const pt_part& part : parts_) {
    const auto begin = reinterpret_cast<uintptr_t>(part.data);
    if (begin < first + bytes && first < begin + part.elements * Width(dtype)) {
      return true;
    }
  }
  return false;
}

uint64_t WriteTiles(const Placement& placement, TileRange tiles,
                    const Parts& parts, uint8_t* slot) {
  const Dtype dtype = placement.bucket.dtype;
  const uint64_t elements = placement.bucket.elements;
  uint64_t outside = 0;
  for (size_t tile = tiles.first; tile < tiles.end;) {
    const uint64_t first = tile * kTile;
    const size_t part = parts.Find(first);
    const uint64_t part_end = parts.end(part);
    const size_t whole =
        part_end == elements ? placement.tiles() : part_end / kTile;
    if (whole > tile) {
      const size_t end = std::min(whole, tiles.end);
      outside +=
          WriteRun(placement, {tile, end},
                   Before(parts.data(part), parts.begin(part), dtype), slot);
      tile = end;
    } else {
      alignas(64) uint8_t gathered[kTile * sizeof(float)];
      Gather(parts, part, first, std::min<uint64_t>(kTile, elements - first),
             dtype, gathered);
      outside += WriteRun(placement, {tile, tile + 1},
                          Before(gathered, first, dtype), slot);
      ++tile;
    }
  }
  return outside;
}

void WritePacked(const Placement& placement, TileRange tiles,
                 const void* packed, uint8_t* slot) {
  CopyKept(placement, tiles, packed, slot + placement.offset);
}

void ReadPacked(const Placement& placement, TileRange tiles,
                const uint8_t* result, void* packed) {
  CopyKept(placement, tiles, result + placement.offset, packed);
}

void ReadTiles(const Placement& placement, TileRange tiles,
               const uint8_t* result, uint32_t world_size, void* out) {
  if (tiles.first == tiles.end) return;
  const auto* in = reinterpret_cast<const float*>(result + placement.offset);
  const auto divisor = static_cast<float>(world_size);
  if (placement.bucket.dtype == Dtype::kBfloat16) {
    ReadBf16(placement, tiles, in, divisor, static_cast<uint16_t*>(out));
    return;
  }
  auto* wide = static_cast<float*>(out);
  if (placement.mask != nullptr) {
    kernels::ExpandDivide(*placement.mask, tiles, in, divisor, wide);
    return;
  }
  const uint64_t first = placement.FilledBefore(tiles.first);
  const uint64_t count = placement.FilledBefore(tiles.end) - first;
  if (placement.bucket.op == Op::kXor) {
    std::memcpy(wide + first, in + first, 4 * count);
  } else {
    kernels::Divide(in + first, count, divisor, wide + first);
  }
}

}  // namespace pactrain::trainer
