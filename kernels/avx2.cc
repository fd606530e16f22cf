// The AVX2 variant of every op. Functions carry the target attribute one by
// one, so that nothing else of the binary uses AVX2 before dispatch.cc has
// asked the CPU.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/variants.h"

#define PACTRAIN_AVX2 __attribute__((target("avx2,popcnt")))

namespace pactrain::kernels::avx2 {
namespace {

// For each byte of mask bits: eight lane numbers, a byte each.
// pack: lane j takes the j-th kept lane. spread: lane i takes its rank among
// the kept ones. Lanes without a meaning take lane 0.
struct LaneTables {
  std::array<uint64_t, 256> pack{};
  std::array<uint64_t, 256> spread{};
};

constexpr LaneTables MakeLaneTables() {
  LaneTables tables;
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned rank = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      tables.pack[mask] |= uint64_t{lane} << (8 * rank);
      tables.spread[mask] |= uint64_t{rank} << (8 * lane);
      ++rank;
    }
  }
  return tables;
}

constexpr LaneTables kLanes = MakeLaneTables();

PACTRAIN_AVX2 inline __m256i Lanes(uint64_t eight_bytes) {
  return _mm256_cvtepu8_epi32(
      _mm_cvtsi64_si128(static_cast<long long>(eight_bytes)));
}

// All ones in the lanes whose bit is set.
PACTRAIN_AVX2 inline __m256i LaneMask(unsigned bits) {
  const __m256i select = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set =
      _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), select);
  return _mm256_cmpeq_epi32(set, select);
}

// The first `count` lanes, count <= 8.
PACTRAIN_AVX2 inline __m256i FirstLanes(size_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Reads or writes at most `available` of eight lanes: never past a buffer's
// end, nor into a neighbouring tile that another thread may be writing.
PACTRAIN_AVX2 inline __m256 Load(const float* from, size_t available) {
  if (available >= 8) return _mm256_loadu_ps(from);
  return _mm256_maskload_ps(from, FirstLanes(available));
}

PACTRAIN_AVX2 inline void Store(float* to, size_t available, __m256 value) {
  if (available >= 8) {
    _mm256_storeu_ps(to, value);
  } else {
    _mm256_maskstore_ps(to, FirstLanes(available), value);
  }
}

PACTRAIN_AVX2 inline size_t NonZeroOutside(__m256 value, unsigned kept) {
  // On bits, not as floats: a thread that flushes denormals would not see them.
  const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(value),
                                             _mm256_set1_epi32(0x7fffffff));
  const __m256i zero = _mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256());
  const auto zeros =
      static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(zero)));
  return static_cast<size_t>(__builtin_popcount(~(zeros | kept) & 0xff));
}

struct WordRange {
  size_t first;
  size_t end;
};

WordRange WordsOf(const MaskPlan& plan, TileRange tiles) {
  constexpr size_t kTileWords = MaskPlan::kTileElements / 64;
  const size_t words = (plan.elements() + 63) / 64;
  return {tiles.first * kTileWords, std::min(tiles.end * kTileWords, words)};
}

// One pass over the tiles; kPack: write the kept ones, kCount: count the
// others.
template <bool kPack, bool kCount>
PACTRAIN_AVX2 uint64_t Pass(const MaskPlan& plan, TileRange tiles,
                            const float* in, float* out) {
  uint64_t count = 0;
  size_t at = kPack ? plan.OutputOffset(tiles.first) : 0;
  const size_t end = kPack ? plan.OutputOffset(tiles.end) : 0;
  const WordRange range = WordsOf(plan, tiles);
  for (size_t w = range.first; w < range.end; ++w) {
    uint64_t word = plan.words()[w];
    if (!kCount && word == 0) continue;
    for (size_t i = w * 64; i < std::min((w + 1) * 64, plan.elements());
         i += 8, word >>= 8) {
      const unsigned kept = word & 0xff;
      if (!kCount && kept == 0) continue;
      const __m256 value = Load(in + i, plan.elements() - i);
      if constexpr (kPack) {
        Store(out + at, end - at,
              _mm256_permutevar8x32_ps(value, Lanes(kLanes.pack[kept])));
        at += static_cast<size_t>(__builtin_popcount(kept));
      }
      if constexpr (kCount) count += NonZeroOutside(value, kept);
    }
  }
  return count;
}

// kDivide: by `divisor`, else bits as they are.
template <bool kDivide>
PACTRAIN_AVX2 void Spread(const MaskPlan& plan, TileRange tiles,
                          const float* in, float divisor, float* out) {
  const __m256 divisors = _mm256_set1_ps(divisor);
  size_t at = plan.OutputOffset(tiles.first);
  const size_t end = plan.OutputOffset(tiles.end);
  const WordRange range = WordsOf(plan, tiles);
  for (size_t w = range.first; w < range.end; ++w) {
    uint64_t word = plan.words()[w];
    for (size_t i = w * 64; i < std::min((w + 1) * 64, plan.elements());
         i += 8, word >>= 8) {
      const unsigned kept = word & 0xff;
      __m256 value = Load(in + at, end - at);
      value = _mm256_permutevar8x32_ps(value, Lanes(kLanes.spread[kept]));
      if constexpr (kDivide) value = _mm256_div_ps(value, divisors);
      value = _mm256_and_ps(value, _mm256_castsi256_ps(LaneMask(kept)));
      Store(out + i, plan.elements() - i, value);
      at += static_cast<size_t>(__builtin_popcount(kept));
    }
  }
}

}  // namespace

void Compact(const MaskPlan& plan, TileRange tiles, const float* in,
             float* out) {
  Pass<true, false>(plan, tiles, in, out);
}

uint64_t CompactAndCount(const MaskPlan& plan, TileRange tiles, const float* in,
                         float* out) {
  return Pass<true, true>(plan, tiles, in, out);
}

uint64_t CountOutside(const MaskPlan& plan, TileRange tiles, const float* in) {
  return Pass<false, true>(plan, tiles, in, nullptr);
}

void Expand(const MaskPlan& plan, TileRange tiles, const float* in,
            float* out) {
  Spread<false>(plan, tiles, in, 1.0f, out);
}

void ExpandDivide(const MaskPlan& plan, TileRange tiles, const float* in,
                  float divisor, float* out) {
  Spread<true>(plan, tiles, in, divisor, out);
}

PACTRAIN_AVX2 void Divide(const float* in, size_t elements, float divisor,
                          float* out) {
  const __m256 divisors = _mm256_set1_ps(divisor);
  for (size_t i = 0; i < elements; i += 8) {
    const size_t available = elements - i;
    Store(out + i, available, _mm256_div_ps(Load(in + i, available), divisors));
  }
}

PACTRAIN_AVX2 void Sum(const float* const* in, size_t buffers, size_t elements,
                       float* out) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  for (size_t i = 0; i < elements; i += 8) {
    const size_t available = elements - i;
    __m256 sum = Load(in[0] + i, available);
    for (size_t b = 1; b < buffers; ++b) {
      sum = _mm256_add_ps(sum, Load(in[b] + i, available));
    }
    const __m256 is_nan = _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q);
    Store(out + i, available, _mm256_blendv_ps(sum, nan, is_nan));
  }
}

PACTRAIN_AVX2 void ToBf16(const float* in, size_t elements, uint16_t* out) {
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i half = _mm256_set1_epi32(0x7fff);
  const __m256i quiet = _mm256_set1_epi32(0x40);
  size_t i = 0;
  for (; i + 8 <= elements; i += 8) {
    const __m256 value = _mm256_loadu_ps(in + i);
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i bias = _mm256_add_epi32(half, _mm256_and_si256(high, one));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i is_nan =
        _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i words =
        _mm256_blendv_epi8(rounded, _mm256_or_si256(high, quiet), is_nan);
    // Packing works within 128-bit halves; bring the two halves together.
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0b10'00);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_castsi256_si128(packed));
  }
  reference::ToBf16(in + i, elements - i, out + i);
}

PACTRAIN_AVX2 void FromBf16(const uint16_t* in, size_t elements, float* out) {
  size_t i = 0;
  for (; i + 8 <= elements; i += 8) {
    const __m128i words =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
    _mm256_storeu_ps(out + i, _mm256_castsi256_ps(bits));
  }
  reference::FromBf16(in + i, elements - i, out + i);
}

}  // namespace pactrain::kernels::avx2

#endif  // defined(__x86_64__)
