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
// Of the slot, 1 MiB: some ten frames, and a message costs next to nothing.
constexpr uint64_t kPieceElements = 256 << 10;

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
    const MaskPlan part(
        reinterpret_cast<const uint8_t*>(mask.words() + first / 64), count);
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

void ReadBf16(const Placement& placement, const float* in, float divisor,
              uint16_t* out) {
  const size_t elements = placement.bucket.elements;
  float wide[kTile];
  for (size_t first = 0; first < elements; first += kTile) {
    const size_t count = std::min(kTile, elements - first);
    if (placement.mask == nullptr) {
      kernels::Divide(in + first, count, divisor, wide);
    } else {
      const MaskPlan part(reinterpret_cast<const uint8_t*>(
                              placement.mask->words() + first / 64),
                          count);
      kernels::ExpandDivide(part, kernels::AllTiles(part),
                            in + placement.mask->OutputOffset(first / kTile),
                            divisor, wide);
    }
    kernels::ToBf16(wide, count, out + first);
  }
}

}  // namespace

size_t Placement::tiles() const {
  return (bucket.elements + kTile - 1) / kTile;
}

uint64_t Placement::FilledBefore(size_t tile) const {
  return mask == nullptr ? std::min<uint64_t>(elements, tile * kTile)
                         : mask->OutputOffset(tile);
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

uint64_t WriteTiles(const Placement& placement, TileRange tiles,
                    const void* data, uint8_t* slot) {
  if (tiles.first == tiles.end) return 0;
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

uint64_t WriteBucket(const Placement& placement, const void* data,
                     uint8_t* slot) {
  return WriteTiles(placement, {0, placement.tiles()}, data, slot);
}

void ReadBucket(const Placement& placement, const uint8_t* result,
                uint32_t world_size, void* out) {
  const auto* in = reinterpret_cast<const float*>(result + placement.offset);
  const auto divisor = static_cast<float>(world_size);
  if (placement.bucket.op == Op::kXor) {
    if (placement.elements > 0) std::memcpy(out, in, placement.bytes());
  } else if (placement.bucket.dtype == Dtype::kBfloat16) {
    ReadBf16(placement, in, divisor, static_cast<uint16_t*>(out));
  } else if (placement.mask == nullptr) {
    kernels::Divide(in, placement.elements, divisor, static_cast<float*>(out));
  } else {
    kernels::ExpandDivide(*placement.mask, kernels::AllTiles(*placement.mask),
                          in, divisor, static_cast<float*>(out));
  }
}

}  // namespace pactrain::trainer
