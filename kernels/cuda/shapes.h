// What the kernels and those who launch them agree on. Read by nvcc, too.
//
// A warp has a tile of 1,024 elements, lane l of it every 32nd from the l-th
// on. A mask is a bitmap, 32 elements a word (least significant first), with
// zeros after the last element and up to the end of its tile; and for each tile
// the number of kept elements before it. Null for both: all elements are kept.
#ifndef PACTRAIN_KERNELS_CUDA_SHAPES_H_
#define PACTRAIN_KERNELS_CUDA_SHAPES_H_

#include <stdint.h>

namespace pactrain::cuda {

constexpr uint32_t kLanes = 32;
constexpr uint32_t kTileElements = 1024;
constexpr uint32_t kTileWords = kTileElements / 32;
constexpr uint32_t kBlockTiles = 8;  // A warp each.
constexpr uint32_t kBlockThreads = kBlockTiles * kLanes;
constexpr uint32_t kBlockElements = kBlockTiles * kTileElements;
constexpr uint32_t kMaxElements = (1u << 31) - 1;

// What compacting leaves of a block's elements; the caller adds the blocks up,
// in order. Of a launch that does not count, `outside` is 0.
struct BlockTotals {
  double
      squares;  // Sum of the squares of kept elements; a NaN is 0x7ff8 << 48.
  uint64_t outside;  // Elements outside the mask that are not zero.
};

inline constexpr uint32_t TilesOf(uint32_t elements) {
  return elements / kTileElements + (elements % kTileElements != 0);
}
inline constexpr uint32_t BlocksOf(uint32_t elements) {
  return elements / kBlockElements + (elements % kBlockElements != 0);
}

}  // namespace pactrain::cuda

#endif  // PACTRAIN_KERNELS_CUDA_SHAPES_H_
