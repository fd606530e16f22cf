// Compact, and expand + divide, of fp32 and bf16 buckets on a GPU: the bits of
// kernels/compact.h, expand.h and bf16.h.
//
// One launch for a bucket: BlocksOf(elements) blocks of kBlockThreads. Nothing
// is added by several threads in an order of their own (no atomics), and what
// rounds is written as an intrinsic that nvcc does not merge into an fma.
// Elements need the alignment of their type only.
//
// A GPU's arithmetic gives NaNs of its own, so that bits of NaNs are made here
// by integers, as the CPU makes them.
#include "kernels/cuda/shapes.h"

// Not without a name: nvcc would make one of the folder that it runs in, and
// the same source would give other bytes there.
namespace pactrain::cuda::kernel {

constexpr uint32_t kAllLanes = 0xffffffff;
// Values that a lane has on the way at a time.
constexpr uint32_t kBatch = 8;
// Blocks that a multiprocessor holds at least, so that registers for a batch
// are there (64 a thread) and nothing is spilled.
constexpr uint32_t kResident = 4;

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint32_t kQuiet = 0x00400000;

__device__ inline bool IsNan(uint32_t bits) {
  return (bits & kMagnitude) > kInfinity;
}

__device__ inline uint32_t Widened(uint32_t bits) { return bits; }
__device__ inline uint32_t Widened(uint16_t bits) {
  return static_cast<uint32_t>(bits) << 16;
}

__device__ inline void Narrow(uint32_t bits, uint32_t* out) { *out = bits; }
// Rounds to nearest, ties to even; a NaN stays one.
__device__ inline void Narrow(uint32_t bits, uint16_t* out) {
  const uint32_t rounded =
      IsNan(bits) ? bits | kQuiet : bits + 0x7fff + (bits >> 16 & 1);
  *out = static_cast<uint16_t>(rounded >> 16);
}

__device__ inline uint32_t Quotient(uint32_t bits, float divisor) {
  if (IsNan(bits)) return bits | kQuiet;
  return __float_as_uint(__fdiv_rn(__uint_as_float(bits), divisor));
}

__device__ inline double Square(uint32_t bits) {
  const double value = __uint_as_float(bits);
  return __dmul_rn(value, value);
}

// Where a warp's lane is in its tile, and what of the mask it needs there.
class Place {
 public:
  __device__ Place(const uint32_t* words, const uint32_t* offsets,
                   uint32_t elements)
      : lane_(threadIdx.x % kLanes),
        first_((blockIdx.x * kBlockTiles + threadIdx.x / kLanes) *
               kTileElements),
        elements_(elements) {
    if (!InBucket()) return;  // No lane of the warp is.
    const uint32_t tile = first_ / kTileElements;
    packed_ = words == nullptr ? first_ : offsets[tile];
    // A word of the tile for each lane.
    own_word_ = words == nullptr ? WholeWord(first_ + lane_ * 32)
                                 : words[tile * kTileWords + lane_];
  }

  __device__ bool InBucket() const { return first_ < elements_; }
  __device__ uint32_t Element(uint32_t round) const {
    return first_ + round * kLanes + lane_;
  }
  __device__ bool IsElement(uint32_t round) const {
    return Element(round) < elements_;
  }
  // All lanes at once, round after round: whether this lane's element is kept,
  // and its place among all kept ones.
  __device__ bool Next(uint32_t round, uint32_t* packed) {
    const uint32_t word = __shfl_sync(kAllLanes, own_word_, round);
    *packed = packed_ + __popc(word & ((1u << lane_) - 1));
    packed_ += __popc(word);
    return (word >> lane_ & 1) != 0;
  }

 private:
  __device__ uint32_t WholeWord(uint32_t first) const {
    if (first >= elements_) return 0;
    const uint32_t left = elements_ - first;
    return left >= 32 ? 0xffffffff : (1u << left) - 1;
  }

  uint32_t lane_;
  uint32_t first_;
  uint32_t elements_;
  uint32_t packed_ = 0;
  uint32_t own_word_ = 0;
};

// Adds up the lanes of each warp by halves, then the block's warps in order.
__device__ inline void AddUp(double squares, uint32_t outside,
                             BlockTotals* totals) {
  for (uint32_t step = kLanes / 2; step > 0; step /= 2) {
    squares = __dadd_rn(squares, __shfl_down_sync(kAllLanes, squares, step));
    outside += __shfl_down_sync(kAllLanes, outside, step);
  }
  __shared__ BlockTotals tiles[kBlockTiles];
  if (threadIdx.x % kLanes == 0) {
    tiles[threadIdx.x / kLanes] = {squares, outside};
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  BlockTotals sum = tiles[0];
  for (uint32_t tile = 1; tile < kBlockTiles; ++tile) {
    sum.squares = __dadd_rn(sum.squares, tiles[tile].squares);
    sum.outside += tiles[tile].outside;
  }
  if (sum.squares != sum.squares) {
    sum.squares = __longlong_as_double(0x7ff8000000000000);
  }
  totals[blockIdx.x] = sum;
}

template <typename Bits>
__device__ inline void Compact(const Bits* __restrict__ in,
                               const uint32_t* __restrict__ words,
                               const uint32_t* __restrict__ offsets,
                               uint32_t elements, bool count_outside,
                               uint32_t* __restrict__ out,
                               BlockTotals* __restrict__ totals) {
  Place place(words, offsets, elements);
  double squares = 0;
  uint32_t outside = 0;
  for (uint32_t first = 0; place.InBucket() && first < kTileWords;
       first += kBatch) {
    uint32_t packed[kBatch], values[kBatch];
    bool kept[kBatch];
    for (uint32_t k = 0; k < kBatch; ++k) {
      const uint32_t round = first + k;
      kept[k] = place.Next(round, &packed[k]);
      // What nobody looks at is not read.
      values[k] = kept[k] || (count_outside && place.IsElement(round))
                      ? Widened(in[place.Element(round)])
                      : 0;
    }
    for (uint32_t k = 0; k < kBatch; ++k) {
      if (kept[k]) {
        out[packed[k]] = values[k];
        squares = __dadd_rn(squares, Square(values[k]));
      } else {
        outside += (values[k] & kMagnitude) != 0;
      }
    }
  }
  AddUp(squares, outside, totals);
}

template <typename Bits>
__device__ inline void ExpandDivide(const uint32_t* __restrict__ in,
                                    const uint32_t* __restrict__ words,
                                    const uint32_t* __restrict__ offsets,
                                    uint32_t elements, float divisor,
                                    Bits* __restrict__ out) {
  Place place(words, offsets, elements);
  for (uint32_t first = 0; place.InBucket() && first < kTileWords;
       first += kBatch) {
    uint32_t values[kBatch];
    bool kept[kBatch];
    for (uint32_t k = 0; k < kBatch; ++k) {
      uint32_t packed;
      kept[k] = place.Next(first + k, &packed);
      values[k] = kept[k] ? in[packed] : 0;
    }
    for (uint32_t k = 0; k < kBatch; ++k) {
      if (!place.IsElement(first + k)) continue;
      Narrow(kept[k] ? Quotient(values[k], divisor) : 0,
             &out[place.Element(first + k)]);
    }
  }
}

}  // namespace pactrain::cuda::kernel

using pactrain::cuda::BlockTotals;
using pactrain::cuda::kBlockThreads;

extern "C" {

// `out` gets the kept elements in fp32, `totals` one entry for each block.
// `count_outside` 0: only what is kept is read.
__global__ void __launch_bounds__(kBlockThreads,
                                  pactrain::cuda::kernel::kResident)
    pactrain_compact_fp32(const uint32_t* in, const uint32_t* words,
                          const uint32_t* offsets, uint32_t elements,
                          uint32_t count_outside, uint32_t* out,
                          BlockTotals* totals) {
  pactrain::cuda::kernel::Compact(in, words, offsets, elements,
                                  count_outside != 0, out, totals);
}

__global__ void __launch_bounds__(kBlockThreads,
                                  pactrain::cuda::kernel::kResident)
    pactrain_compact_bf16(const uint16_t* in, const uint32_t* words,
                          const uint32_t* offsets, uint32_t elements,
                          uint32_t count_outside, uint32_t* out,
                          BlockTotals* totals) {
  pactrain::cuda::kernel::Compact(in, words, offsets, elements,
                                  count_outside != 0, out, totals);
}

// `in` has the kept elements in fp32; `out` gets +0 outside the mask.
// `divisor`: above 0 and finite.
__global__ void __launch_bounds__(kBlockThreads,
                                  pactrain::cuda::kernel::kResident)
    pactrain_expand_divide_fp32(const uint32_t* in, const uint32_t* words,
                                const uint32_t* offsets, uint32_t elements,
                                float divisor, uint32_t* out) {
  pactrain::cuda::kernel::ExpandDivide(in, words, offsets, elements, divisor,
                                       out);
}

__global__ void __launch_bounds__(kBlockThreads,
                                  pactrain::cuda::kernel::kResident)
    pactrain_expand_divide_bf16(const uint32_t* in, const uint32_t* words,
                                const uint32_t* offsets, uint32_t elements,
                                float divisor, uint16_t* out) {
  pactrain::cuda::kernel::ExpandDivide(in, words, offsets, elements, divisor,
                                       out);
}

}  // extern "C"
