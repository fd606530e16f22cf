// The AVX2 variant of every op. Functions carry the target attribute one by
// one, so that nothing else of the binary uses AVX2 before dispatch.cc has
// asked the CPU.
#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/variants.h"
#include "kernels/words.h"

#define PACTRAIN_AVX2 __attribute__((target("avx2,popcnt")))

namespace pactrain::kernels::avx2 {
namespace {

using words::Buffers;
using words::kAhead;
using words::kWord;
using words::Place;
using words::Run;

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

// Reads or writes at most `available` of eight lanes.
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

// A bit for each of the 64 elements that is not zero.
PACTRAIN_AVX2 inline uint64_t NonZero(const float* in) {
  // On bits, not as floats: a thread that flushes denormals would not see them.
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  uint64_t zeros = 0;
  for (unsigned i = 0; i < kWord; i += 8) {
    const __m256i bits = _mm256_and_si256(
        _mm256_castps_si256(_mm256_loadu_ps(in + i)), magnitude);
    const __m256i zero = _mm256_cmpeq_epi32(bits, _mm256_setzero_si256());
    zeros |= uint64_t(static_cast<uint8_t>(
                 _mm256_movemask_ps(_mm256_castsi256_ps(zero))))
             << i;
  }
  return ~zeros;
}

PACTRAIN_AVX2 inline size_t Ones(uint64_t word) {
  return static_cast<size_t>(_mm_popcnt_u64(word));
}

// One word; writes up to eight elements past its last packed one.
PACTRAIN_AVX2 inline void PackWord(uint64_t word, const float* in, float* out) {
#pragma GCC unroll 8
  for (unsigned i = 0; i < kWord; i += 8) {
    if (i % 16 == 0) _mm_prefetch(in + i + kAhead, _MM_HINT_T0);
    const unsigned kept = word >> i & 0xff;
    const __m256 value = _mm256_permutevar8x32_ps(_mm256_loadu_ps(in + i),
                                                  Lanes(kLanes.pack[kept]));
    _mm256_storeu_ps(out, value);
    out += Ones(kept);
  }
}

// Nothing past it.
PACTRAIN_AVX2 inline void PackWordExactly(uint64_t word, const float* in,
                                          float* out) {
  float packed[kWord + 8];
  PackWord(word, in, packed);
  std::memcpy(out, packed, Ones(word) * sizeof(float));
}

template <bool kCount>
PACTRAIN_AVX2 void Pack(const Buffers& buffers, Run* run, size_t words,
                        uint64_t* outside) {
  for (const size_t end = run->word + words; run->word < end; ++run->word) {
    const uint64_t word = buffers.words[run->word];
    const float* in = buffers.in + run->word * kWord;
    float* out = buffers.out + run->packed;
    run->packed += Ones(word);
    if (run->end_packed - run->packed >= 8) {
      PackWord(word, in, out);
    } else {
      PackWordExactly(word, in, out);
    }
    if constexpr (kCount) *outside += Ones(NonZero(in) & ~word);
  }
}

PACTRAIN_AVX2 uint64_t Count(const Buffers& buffers, size_t first, size_t end) {
  uint64_t outside = 0;
  for (size_t w = first; w < end; ++w) {
    outside += Ones(NonZero(buffers.in + w * kWord) & ~buffers.words[w]);
  }
  return outside;
}

// kDivide: by `divisor`, else bits as they are.
template <bool kDivide, bool kStream>
PACTRAIN_AVX2 Place Spread(const Buffers& buffers, Place at, Place limit,
                           float divisor) {
  const __m256 divisors = _mm256_set1_ps(divisor);
  for (; at.word < limit.word && limit.packed - at.packed >= kWord; ++at.word) {
    const uint64_t word = buffers.words[at.word];
    float* out = buffers.out + at.word * kWord;
#pragma GCC unroll 8
    for (unsigned i = 0; i < kWord; i += 8) {
      const unsigned kept = word >> i & 0xff;
      __m256 value = _mm256_loadu_ps(buffers.in + at.packed);
      value = _mm256_permutevar8x32_ps(value, Lanes(kLanes.spread[kept]));
      if constexpr (kDivide) value = _mm256_div_ps(value, divisors);
      value = _mm256_and_ps(value, _mm256_castsi256_ps(LaneMask(kept)));
      if constexpr (kStream) {
        _mm256_stream_ps(out + i, value);
      } else {
        _mm256_storeu_ps(out + i, value);
      }
      at.packed += Ones(kept);
    }
  }
  if constexpr (kStream) _mm_sfence();
  return at;
}

template <bool kDivide>
constexpr words::Spreaders kSpreaders = {Spread<kDivide, false>,
                                         Spread<kDivide, true>};

}  // namespace

void Compact(const MaskPlan& plan, TileRange tiles, const float* in,
             float* out) {
  words::Compact(Pack<false>, plan, tiles, in, out);
}

uint64_t CompactAndCount(const MaskPlan& plan, TileRange tiles, const float* in,
                         float* out) {
  return words::CompactAndCount(Pack<true>, plan, tiles, in, out);
}

uint64_t CountOutside(const MaskPlan& plan, TileRange tiles, const float* in) {
  return words::CountOutside(Count, plan, tiles, in);
}

PACTRAIN_AVX2 ZeroChanges UpdateNonZero(const float* in, size_t elements,
                                        uint64_t* words) {
  const size_t whole = elements / kWord;
  ZeroChanges changes;
  for (size_t w = 0; w < whole; ++w) {
    const uint64_t now = NonZero(in + w * kWord);
    if (now == words[w]) continue;
    changes.gone += Ones(words[w] & ~now);
    changes.back += Ones(now & ~words[w]);
    words[w] = now;
  }
  const ZeroChanges rest = reference::UpdateNonZero(
      in + whole * kWord, elements % kWord, words + whole);
  return {changes.gone + rest.gone, changes.back + rest.back};
}

void Expand(const MaskPlan& plan, TileRange tiles, const float* in,
            float* out) {
  words::Expand(kSpreaders<false>, plan, tiles, in, out);
}

void ExpandDivide(const MaskPlan& plan, TileRange tiles, const float* in,
                  float divisor, float* out) {
  words::ExpandDivide(kSpreaders<true>, plan, tiles, in, divisor, out);
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
