// The AVX-512 variants of every op, as avx2.cc has them. Two of them, since
// there are two ways to compact: compress in a register and store all of it, or
// let the compressing instruction store. On Intel the latter took 0.9 to 0.97
// of the time (24 Mi elements); on Zen 4 it is microcode and many times slower.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/variants.h"
#include "kernels/words.h"

// gcc 12 takes the undefined operands inside of its own intrinsics for a
// mistake.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define PACTRAIN_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,popcnt")))

namespace pactrain::kernels::avx512 {
namespace {

using words::Buffers;
using words::kAhead;
using words::kWord;
using words::Place;
using words::Run;

enum class Compress { kInRegister, kToMemory };

// The first `count` lanes; all 16 if there are more.
PACTRAIN_AVX512 inline __mmask16 FirstLanes(size_t count) {
  return count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1);
}

// A bit for each of the 64 elements that is not zero.
PACTRAIN_AVX512 inline uint64_t NonZero(const float* in) {
  // On bits, not as floats: a thread that flushes denormals would not see them.
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  uint64_t ones = 0;
  for (unsigned i = 0; i < kWord; i += 16) {
    ones |=
        uint64_t{_mm512_test_epi32_mask(_mm512_loadu_si512(in + i), magnitude)}
        << i;
  }
  return ones;
}

PACTRAIN_AVX512 inline size_t Ones(uint64_t word) {
  return static_cast<size_t>(_mm_popcnt_u64(word));
}

// One word; kExact: writes nothing past its last packed element, which
// compressing to memory never does.
template <Compress kCompress, bool kExact>
PACTRAIN_AVX512 inline void PackWord(uint64_t word, const float* in,
                                     float* out) {
#pragma GCC unroll 4
  for (unsigned i = 0; i < kWord; i += 16) {
    _mm_prefetch(in + i + kAhead, _MM_HINT_T0);
    const auto kept = static_cast<__mmask16>(word >> i);
    const size_t count = Ones(kept);
    const __m512 value = _mm512_loadu_ps(in + i);
    if constexpr (kCompress == Compress::kToMemory) {
      _mm512_mask_compressstoreu_ps(out, kept, value);
    } else if constexpr (kExact) {
      _mm512_mask_storeu_ps(out, FirstLanes(count),
                            _mm512_maskz_compress_ps(kept, value));
    } else {
      _mm512_storeu_ps(out, _mm512_maskz_compress_ps(kept, value));
    }
    out += count;
  }
}

template <Compress kCompress, bool kCount>
PACTRAIN_AVX512 void Pack(const Buffers& buffers, Run* run, size_t words,
                          uint64_t* outside) {
  for (const size_t end = run->word + words; run->word < end; ++run->word) {
    const uint64_t word = buffers.words[run->word];
    const float* in = buffers.in + run->word * kWord;
    float* out = buffers.out + run->packed;
    if (run->end_packed - run->packed >= kWord) {
      PackWord<kCompress, false>(word, in, out);
    } else {
      PackWord<kCompress, true>(word, in, out);
    }
    run->packed += Ones(word);
    if constexpr (kCount) *outside += Ones(NonZero(in) & ~word);
  }
}

PACTRAIN_AVX512 uint64_t Count(const Buffers& buffers, size_t first,
                               size_t end) {
  uint64_t outside = 0;
  for (size_t w = first; w < end; ++w) {
    outside += Ones(NonZero(buffers.in + w * kWord) & ~buffers.words[w]);
  }
  return outside;
}

// kDivide: by `divisor`, else bits as they are.
template <bool kDivide, bool kStream>
PACTRAIN_AVX512 Place Spread(const Buffers& buffers, Place at, Place limit,
                             float divisor) {
  const __m512 divisors = _mm512_set1_ps(divisor);
  for (; at.word < limit.word && limit.packed - at.packed >= kWord; ++at.word) {
    const uint64_t word = buffers.words[at.word];
    float* out = buffers.out + at.word * kWord;
    for (unsigned i = 0; i < kWord; i += 16) {
      const auto kept = static_cast<__mmask16>(word >> i);
      __m512 value =
          _mm512_maskz_expand_ps(kept, _mm512_loadu_ps(buffers.in + at.packed));
      if constexpr (kDivide) value = _mm512_maskz_div_ps(kept, value, divisors);
      if constexpr (kStream) {
        _mm512_stream_ps(out + i, value);
      } else {
        _mm512_storeu_ps(out + i, value);
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

void CompactInRegister(const MaskPlan& plan, TileRange tiles, const float* in,
                       float* out) {
  words::Compact(Pack<Compress::kInRegister, false>, plan, tiles, in, out);
}

void CompactToMemory(const MaskPlan& plan, TileRange tiles, const float* in,
                     float* out) {
  words::Compact(Pack<Compress::kToMemory, false>, plan, tiles, in, out);
}

uint64_t CompactAndCountInRegister(const MaskPlan& plan, TileRange tiles,
                                   const float* in, float* out) {
  return words::CompactAndCount(Pack<Compress::kInRegister, true>, plan, tiles,
                                in, out);
}

uint64_t CompactAndCountToMemory(const MaskPlan& plan, TileRange tiles,
                                 const float* in, float* out) {
  return words::CompactAndCount(Pack<Compress::kToMemory, true>, plan, tiles,
                                in, out);
}

uint64_t CountOutside(const MaskPlan& plan, TileRange tiles, const float* in) {
  return words::CountOutside(Count, plan, tiles, in);
}

PACTRAIN_AVX512 ZeroChanges UpdateNonZero(const float* in, size_t elements,
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

PACTRAIN_AVX512 void Divide(const float* in, size_t elements, float divisor,
                            float* out) {
  const __m512 divisors = _mm512_set1_ps(divisor);
  for (size_t i = 0; i < elements; i += 16) {
    const __mmask16 lanes = FirstLanes(elements - i);
    const __m512 value = _mm512_maskz_loadu_ps(lanes, in + i);
    _mm512_mask_storeu_ps(out + i, lanes, _mm512_div_ps(value, divisors));
  }
}

PACTRAIN_AVX512 void Sum(const float* const* in, size_t buffers,
                         size_t elements, float* out) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  for (size_t i = 0; i < elements; i += 16) {
    const __mmask16 lanes = FirstLanes(elements - i);
    __m512 sum = _mm512_maskz_loadu_ps(lanes, in[0] + i);
    for (size_t b = 1; b < buffers; ++b) {
      sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes, in[b] + i));
    }
    const __mmask16 is_nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
    _mm512_mask_storeu_ps(out + i, lanes, _mm512_mask_mov_ps(sum, is_nan, nan));
  }
}

// Not by the instructions of AVX512_BF16: they flush denormals.
PACTRAIN_AVX512 void ToBf16(const float* in, size_t elements, uint16_t* out) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i half = _mm512_set1_epi32(0x7fff);
  const __m512i quiet = _mm512_set1_epi32(0x40);
  for (size_t i = 0; i < elements; i += 16) {
    const __mmask16 lanes = FirstLanes(elements - i);
    const __m512 value = _mm512_maskz_loadu_ps(lanes, in + i);
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i bias = _mm512_add_epi32(half, _mm512_and_si512(high, one));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i words = _mm512_mask_or_epi32(rounded, is_nan, high, quiet);
    _mm512_mask_cvtepi32_storeu_epi16(out + i, lanes, words);
  }
}

PACTRAIN_AVX512 void FromBf16(const uint16_t* in, size_t elements, float* out) {
  for (size_t i = 0; i < elements; i += 16) {
    const __mmask16 lanes = FirstLanes(elements - i);
    const __m512i words =
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, in + i));
    _mm512_mask_storeu_epi32(out + i, lanes, _mm512_slli_epi32(words, 16));
  }
}

}  // namespace pactrain::kernels::avx512

#endif  // defined(__x86_64__)
