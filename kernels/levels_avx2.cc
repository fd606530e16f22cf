// The AVX2 variant of the n-level codec: sixteen elements share a vector of
// hashes. Every operation is the reference's, in its order.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/levels_format.h"
#include "kernels/variants.h"

#define PACTRAIN_AVX2 __attribute__((target("avx2")))

namespace pactrain::kernels {
namespace levels {
namespace {

// Eight counters at once; Next() gives the bits of sixteen elements.
class Hashes {
 public:
  PACTRAIN_AVX2 Hashes(const DitherStream& dither, uint32_t first)
      : x_(_mm256_add_epi32(
            All(dither.low + first / 2 * DitherStream::kStep),
            _mm256_mullo_epi32(All(DitherStream::kStep),
                               _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))),
        high_(All(dither.high)) {}

  PACTRAIN_AVX2 __m256i Next() {
    __m256i x = x_;
    x_ = _mm256_add_epi32(x_, All(8 * DitherStream::kStep));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    x = _mm256_mullo_epi32(x, All(DitherStream::kMultiplier1));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
    x = _mm256_xor_si256(x, high_);
    x = _mm256_mullo_epi32(x, All(DitherStream::kMultiplier2));
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
  }
  // The bits of the first and the second eight elements.
  PACTRAIN_AVX2 static __m256i Lower(__m256i hash) {
    return _mm256_and_si256(hash, All(0xffff));
  }
  PACTRAIN_AVX2 static __m256i Upper(__m256i hash) {
    return _mm256_srli_epi32(hash, 16);
  }

 private:
  PACTRAIN_AVX2 static __m256i All(uint32_t value) {
    return _mm256_set1_epi32(static_cast<int>(value));
  }

  __m256i x_;
  __m256i high_;
};

// Eight sums of squares in double.
struct Squares {
  PACTRAIN_AVX2 Squares()
      : low(_mm256_setzero_pd()), high(_mm256_setzero_pd()) {}
  PACTRAIN_AVX2 void Add(__m256 x) {
    const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    low = _mm256_add_pd(low, _mm256_mul_pd(a, a));
    high = _mm256_add_pd(high, _mm256_mul_pd(b, b));
  }
  PACTRAIN_AVX2 double Sum() const {
    double lanes[8];
    _mm256_storeu_pd(lanes, low);
    _mm256_storeu_pd(lanes + 4, high);
    return SumLanes(lanes);
  }

  __m256d low;
  __m256d high;
};

// Turns codes into values.
class Decoder {
 public:
  PACTRAIN_AVX2 Decoder(Levels levels, const Step& step)
      : offset_(_mm256_set1_epi32(65535 - Half(levels) * 131072)),
        unit_(_mm256_set1_ps(step.unit)) {}
  // 2 (65536 (code - h) - bits + 32768) - 1, times the unit.
  PACTRAIN_AVX2 __m256 Decode(__m256i codes, __m256i bits) const {
    const __m256i integer =
        _mm256_add_epi32(_mm256_sub_epi32(_mm256_slli_epi32(codes, 17),
                                          _mm256_slli_epi32(bits, 1)),
                         offset_);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(integer), unit_);
  }

 private:
  __m256i offset_;
  __m256 unit_;
};

// Eight elements to codes, with their noise.
class Encoder {
 public:
  PACTRAIN_AVX2 Encoder(Levels levels, const Step& step)
      : decoder_(levels, step),
        inverse_(_mm256_set1_ps(step.inverse)),
        half_(_mm256_set1_ps(step.half)),
        minus_half_(_mm256_set1_ps(-step.half)),
        offset_(_mm256_set1_ps(step.half - 1.0f + 1.0f / 131072.0f)),
        clip_(_mm256_setzero_ps()) {}

  PACTRAIN_AVX2 __m256i Encode(const float* in, __m256i bits) {
    const __m256 x = _mm256_loadu_ps(in);
    const __m256 y = _mm256_mul_ps(x, inverse_);
    const __m256 clipped = _mm256_max_ps(_mm256_min_ps(y, half_), minus_half_);
    // 1 + bits / 65536 as the bits of a float, then u + h; both exact.
    const __m256i one = _mm256_set1_epi32(0x3f800000);
    const __m256 u = _mm256_add_ps(
        _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(bits, 7), one)),
        offset_);
    const __m256i codes = _mm256_cvttps_epi32(_mm256_add_ps(clipped, u));
    error_.Add(_mm256_sub_ps(x, decoder_.Decode(codes, bits)));
    const __m256 over = _mm256_sub_ps(y, clipped);
    clip_ = _mm256_add_ps(clip_, _mm256_mul_ps(over, over));
    return codes;
  }
  PACTRAIN_AVX2 double ErrorSquared() const { return error_.Sum(); }
  PACTRAIN_AVX2 void ClipLanes(float lanes[8]) const {
    _mm256_storeu_ps(lanes, clip_);
  }

 private:
  Decoder decoder_;
  __m256 inverse_;
  __m256 half_;
  __m256 minus_half_;
  __m256 offset_;
  __m256 clip_;
  Squares error_;
};

PACTRAIN_AVX2 uint32_t MaxAndSquares(const float* in, double* sum_of_squares) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i max = _mm256_setzero_si256();
  Squares squares;
  for (size_t i = 0; i < kLevelsBlock; i += 8) {
    const __m256 x = _mm256_loadu_ps(in + i);
    max = _mm256_max_epi32(max,
                           _mm256_and_si256(_mm256_castps_si256(x), magnitude));
    squares.Add(x);
  }
  *sum_of_squares = squares.Sum();
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(max),
                               _mm256_extracti128_si256(max, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0b01'00'11'10));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0b10'11'00'01));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
}

PACTRAIN_AVX2 uint16_t EncodeBlock(Levels levels, const DitherStream& dither,
                                   uint32_t first, const float* in,
                                   size_t elements, uint8_t* codes,
                                   LevelsNoise* noise) {
  const auto plain = kReferenceOps.encode_block;
  if (elements < kLevelsBlock) {
    return plain(levels, dither, first, in, elements, codes, noise);
  }
  double input_squared;
  const uint32_t max_bits = MaxAndSquares(in, &input_squared);
  const uint16_t scale = ScaleOf(levels, max_bits, input_squared, elements);
  if (scale == 0 || scale == kNaNScale) {
    return plain(levels, dither, first, in, elements, codes, noise);
  }
  const Step step(levels, scale);
  Hashes hashes(dither, first);
  Encoder encoder(levels, step);
  for (size_t i = 0; i < kLevelsBlock; i += 32) {
    __m256i words[2];
    for (size_t j = 0; j < 2; ++j) {
      const __m256i hash = hashes.Next();
      const float* sixteen = in + i + 16 * j;
      const __m256i a = encoder.Encode(sixteen, Hashes::Lower(hash));
      const __m256i b = encoder.Encode(sixteen + 8, Hashes::Upper(hash));
      words[j] = _mm256_packs_epi32(a, b);
    }
    // Packing works within 128-bit halves; put groups of four into order.
    const __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words[0], words[1]),
                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), bytes);
  }
  float clip[8];
  encoder.ClipLanes(clip);
  noise->input_squared += input_squared;
  noise->error_squared += encoder.ErrorSquared();
  noise->clip_squared += ClipSquared(step, max_bits, clip);
  return scale;
}

PACTRAIN_AVX2 void DecodeBlock(Levels levels, const DitherStream& dither,
                               uint32_t first, uint16_t scale,
                               const uint8_t* codes, size_t elements,
                               float* out) {
  if (elements < kLevelsBlock) {
    return kReferenceOps.decode_block(levels, dither, first, scale, codes,
                                      elements, out);
  }
  const Decoder decoder(levels, Step(levels, scale));
  Hashes hashes(dither, first);
  for (size_t i = 0; i < kLevelsBlock; i += 16) {
    const __m256i hash = hashes.Next();
    const __m128i bytes =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    _mm256_storeu_ps(out + i, decoder.Decode(_mm256_cvtepu8_epi32(bytes),
                                             Hashes::Lower(hash)));
    _mm256_storeu_ps(
        out + i + 8,
        decoder.Decode(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)),
                       Hashes::Upper(hash)));
  }
}

}  // namespace

PACTRAIN_AVX2 uint8_t Avx2Largest(const uint8_t* codes, size_t elements) {
  __m256i max = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 32 <= elements; i += 32) {
    max = _mm256_max_epu8(
        max, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
  }
  uint8_t lanes[32];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), max);
  return std::max(*std::max_element(lanes, lanes + 32),
                  kReferenceOps.largest(codes + i, elements - i));
}

const Ops kAvx2Ops = {EncodeBlock, DecodeBlock, Avx2Pack, Avx2Unpack,
                      Avx2Largest};

}  // namespace levels

namespace avx2 {

LevelsNoise EncodeLevels(Levels levels, const LevelsDither& dither,
                         LevelsForm form, const float* in, size_t elements,
                         uint8_t* out, size_t* bytes, float* decoded) {
  return levels::Encode(levels::kAvx2Ops, levels, dither, form, in, elements,
                        out, bytes, decoded);
}

bool DecodeLevels(Levels levels, const LevelsDither& dither,
                  std::span<const uint8_t> in, size_t elements, float* out) {
  return levels::Decode(levels::kAvx2Ops, levels, dither, in, elements, out);
}

}  // namespace avx2
}  // namespace pactrain::kernels

#endif  // defined(__x86_64__)
