// The AVX-512 variant of the n-level codec: 32 elements share a vector of
// hashes. Every operation is the reference's, in its order. Codes are packed by
// the AVX2 variant's code.
#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/levels_format.h"
#include "kernels/variants.h"

// gcc 12 takes the undefined operands inside of its own intrinsics for a
// mistake.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define PACTRAIN_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

namespace pactrain::kernels {
namespace levels {
namespace {

PACTRAIN_AVX512 inline __m512i All(uint32_t value) {
  return _mm512_set1_epi32(static_cast<int>(value));
}

// The bits of 32 elements: Dither() of the first and of the second 16.
class Hashes {
 public:
  PACTRAIN_AVX512 Hashes(const DitherStream& dither, uint32_t first)
      : x_(_mm512_add_epi32(
            All(dither.low + first / 2 * DitherStream::kStep),
            _mm512_mullo_epi32(All(DitherStream::kStep),
                               _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                                 10, 11, 12, 13, 14, 15)))),
        high_(All(dither.high)),
        order_(Order()) {}

  PACTRAIN_AVX512 __m512i Next() {
    __m512i x = x_;
    x_ = _mm512_add_epi32(x_, All(16 * DitherStream::kStep));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_mullo_epi32(x, All(DitherStream::kMultiplier1));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    x = _mm512_xor_si512(x, high_);
    x = _mm512_mullo_epi32(x, All(DitherStream::kMultiplier2));
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
  }
  PACTRAIN_AVX512 __m512i First(__m512i hash) const {
    return _mm512_maskz_permutexvar_epi16(kLowerHalves, order_, hash);
  }
  PACTRAIN_AVX512 __m512i Second(__m512i hash) const {
    // The same of the upper eight hashes: sixteen halves on.
    return _mm512_maskz_permutexvar_epi16(
        kLowerHalves, _mm512_add_epi16(order_, _mm512_set1_epi16(16)), hash);
  }

 private:
  static constexpr __mmask32 kLowerHalves = 0x55555555;

  // Lane i takes the lower half of hash i, lane 8 + i its upper half.
  PACTRAIN_AVX512 static __m512i Order() {
    return _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13,
                             15);
  }

  __m512i x_;
  __m512i high_;
  __m512i order_;
};

// Eight sums of squares in double.
struct Squares {
  PACTRAIN_AVX512 Squares() : lanes(_mm512_setzero_pd()) {}
  PACTRAIN_AVX512 void Add(__m512 x) {
    const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    lanes = _mm512_add_pd(lanes, _mm512_mul_pd(a, a));
    lanes = _mm512_add_pd(lanes, _mm512_mul_pd(b, b));
  }
  PACTRAIN_AVX512 double Sum() const {
    double sums[8];
    _mm512_storeu_pd(sums, lanes);
    return SumLanes(sums);
  }

  __m512d lanes;
};

// Turns codes into values.
class Decoder {
 public:
  PACTRAIN_AVX512 Decoder(Levels levels, const Step& step)
      : offset_(_mm512_set1_epi32(65535 - Half(levels) * 131072)),
        unit_(_mm512_set1_ps(step.unit)) {}
  // 2 (65536 (code - h) - bits + 32768) - 1, times the unit.
  PACTRAIN_AVX512 __m512 Decode(__m512i codes, __m512i bits) const {
    const __m512i integer =
        _mm512_add_epi32(_mm512_sub_epi32(_mm512_slli_epi32(codes, 17),
                                          _mm512_slli_epi32(bits, 1)),
                         offset_);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(integer), unit_);
  }

 private:
  __m512i offset_;
  __m512 unit_;
};

// Sixteen elements to codes, with their noise. kClip: some may be clipped.
template <bool kClip>
class Encoder {
 public:
  PACTRAIN_AVX512 Encoder(Levels levels, const Step& step)
      : decoder_(levels, step),
        inverse_(_mm512_set1_ps(step.inverse)),
        half_(_mm512_set1_ps(step.half)),
        minus_half_(_mm512_set1_ps(-step.half)),
        offset_(_mm512_set1_ps(step.half - 1.0f + 1.0f / 131072.0f)),
        clip_(_mm256_setzero_ps()) {}

  PACTRAIN_AVX512 void Encode(const float* in, __m512i bits, uint8_t* out) {
    const __m512 x = _mm512_loadu_ps(in);
    const __m512 y = _mm512_mul_ps(x, inverse_);
    const __m512 clipped = _mm512_max_ps(_mm512_min_ps(y, half_), minus_half_);
    // 1 + bits / 65536 as the bits of a float, then u + h; both exact.
    const __m512i one = _mm512_set1_epi32(0x3f800000);
    const __m512 u = _mm512_add_ps(
        _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(bits, 7), one)),
        offset_);
    const __m512i codes = _mm512_cvttps_epi32(_mm512_add_ps(clipped, u));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm512_cvtepi32_epi8(codes));
    error_.Add(_mm512_sub_ps(x, decoder_.Decode(codes, bits)));
    if constexpr (kClip) {
      const __m512 over = _mm512_sub_ps(y, clipped);
      const __m512 square = _mm512_mul_ps(over, over);
      clip_ = _mm256_add_ps(clip_, _mm512_castps512_ps256(square));
      clip_ = _mm256_add_ps(clip_, _mm512_extractf32x8_ps(square, 1));
    }
  }
  PACTRAIN_AVX512 double ErrorSquared() const { return error_.Sum(); }
  PACTRAIN_AVX512 void ClipLanes(float lanes[8]) const {
    _mm256_storeu_ps(lanes, clip_);
  }

 private:
  Decoder decoder_;
  __m512 inverse_;
  __m512 half_;
  __m512 minus_half_;
  __m512 offset_;
  __m256 clip_;
  Squares error_;
};

PACTRAIN_AVX512 uint32_t MaxAndSquares(const float* in,
                                       double* sum_of_squares) {
  __m512i max = _mm512_setzero_si512();
  Squares squares;
  for (size_t i = 0; i < kLevelsBlock; i += 16) {
    const __m512 x = _mm512_loadu_ps(in + i);
    max = _mm512_max_epu32(
        max, _mm512_and_si512(_mm512_castps_si512(x), All(0x7fffffff)));
    squares.Add(x);
  }
  *sum_of_squares = squares.Sum();
  return _mm512_reduce_max_epu32(max);
}

template <bool kClip>
PACTRAIN_AVX512 void EncodeScaled(Levels levels, const DitherStream& dither,
                                  uint32_t first, const float* in,
                                  const Step& step, uint32_t max_bits,
                                  uint8_t* codes, LevelsNoise* noise) {
  Hashes hashes(dither, first);
  Encoder<kClip> encoder(levels, step);
  for (size_t i = 0; i < kLevelsBlock; i += 32) {
    const __m512i hash = hashes.Next();
    encoder.Encode(in + i, hashes.First(hash), codes + i);
    encoder.Encode(in + i + 16, hashes.Second(hash), codes + i + 16);
  }
  float clip[8];
  encoder.ClipLanes(clip);
  noise->error_squared += encoder.ErrorSquared();
  noise->clip_squared += ClipSquared(step, max_bits, clip);
}

PACTRAIN_AVX512 uint16_t EncodeBlock(Levels levels, const DitherStream& dither,
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
  noise->input_squared += input_squared;
  const bool clips = max_bits > std::bit_cast<uint32_t>(step.scale);
  const auto encode = clips ? EncodeScaled<true> : EncodeScaled<false>;
  encode(levels, dither, first, in, step, max_bits, codes, noise);
  return scale;
}

PACTRAIN_AVX512 inline __m512i LoadCodes(const uint8_t* codes) {
  return _mm512_cvtepu8_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
}

PACTRAIN_AVX512 void DecodeBlock(Levels levels, const DitherStream& dither,
                                 uint32_t first, uint16_t scale,
                                 const uint8_t* codes, size_t elements,
                                 float* out) {
  if (elements < kLevelsBlock) {
    return kReferenceOps.decode_block(levels, dither, first, scale, codes,
                                      elements, out);
  }
  const Decoder decoder(levels, Step(levels, scale));
  Hashes hashes(dither, first);
  for (size_t i = 0; i < kLevelsBlock; i += 32) {
    const __m512i hash = hashes.Next();
    _mm512_storeu_ps(out + i,
                     decoder.Decode(LoadCodes(codes + i), hashes.First(hash)));
    _mm512_storeu_ps(out + i + 16, decoder.Decode(LoadCodes(codes + i + 16),
                                                  hashes.Second(hash)));
  }
}

}  // namespace

const Ops kAvx512Ops = {EncodeBlock, DecodeBlock, Avx2Pack, Avx2Unpack,
                        Avx2Largest};

}  // namespace levels

namespace avx512 {

LevelsNoise EncodeLevels(Levels levels, const LevelsDither& dither,
                         LevelsForm form, const float* in, size_t elements,
                         uint8_t* out, size_t* bytes, float* decoded) {
  return levels::Encode(levels::kAvx512Ops, levels, dither, form, in, elements,
                        out, bytes, decoded);
}

bool DecodeLevels(Levels levels, const LevelsDither& dither,
                  std::span<const uint8_t> in, size_t elements, float* out) {
  return levels::Decode(levels::kAvx512Ops, levels, dither, in, elements, out);
}

}  // namespace avx512
}  // namespace pactrain::kernels

#endif  // defined(__x86_64__)
