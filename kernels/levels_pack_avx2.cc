// The packing of codes, 32 columns at a time. See levels_format.h; bytes are
// multiplied and divided in the 16-bit halves that AVX2 has.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/levels_format.h"

#define PACTRAIN_AVX2 __attribute__((target("avx2")))

namespace pactrain::kernels::levels {
namespace {

constexpr size_t kColumns = 32;

// 32 columns of codes or bytes: entry i lies `plane` bytes after entry i - 1.
class In {
 public:
  In(const uint8_t* first, size_t plane) : first_(first), plane_(plane) {}
  PACTRAIN_AVX2 __m256i operator[](size_t i) const {
    return _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(first_ + i * plane_));
  }

 private:
  const uint8_t* first_;
  size_t plane_;
};

class Out {
 public:
  Out(uint8_t* first, size_t plane) : first_(first), plane_(plane) {}
  PACTRAIN_AVX2 void Set(size_t i, __m256i value) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(first_ + i * plane_), value);
  }

 private:
  uint8_t* first_;
  size_t plane_;
};

PACTRAIN_AVX2 inline __m256i All(int byte) {
  return _mm256_set1_epi8(static_cast<char>(byte));
}

// byte * kFactor where every product is under 256: nothing is carried over.
template <int kFactor>
PACTRAIN_AVX2 inline __m256i Times(__m256i bytes) {
  return _mm256_mullo_epi16(bytes, _mm256_set1_epi16(kFactor));
}

// floor(byte / kDivisor) = floor(byte ceil(2^16 / kDivisor) / 2^16), exact as
// the factor is off by less than 1, and byte * kDivisor < 2^16.
template <int kDivisor>
PACTRAIN_AVX2 inline __m256i Over(__m256i bytes) {
  const __m256i factor =
      _mm256_set1_epi16(static_cast<short>((65536 + kDivisor - 1) / kDivisor));
  const __m256i even = _mm256_mulhi_epu16(
      _mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), factor);
  const __m256i odd = _mm256_mulhi_epu16(_mm256_srli_epi16(bytes, 8), factor);
  return _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
}

// low + kFactor * high.
template <int kFactor>
PACTRAIN_AVX2 inline __m256i Join(__m256i low, __m256i high) {
  return _mm256_add_epi8(low, Times<kFactor>(high));
}

struct Parts {
  __m256i low;   // value % kFactor
  __m256i high;  // value / kFactor
};

template <int kFactor>
PACTRAIN_AVX2 inline Parts Split(__m256i value) {
  const __m256i high = Over<kFactor>(value);
  return {_mm256_sub_epi8(value, Times<kFactor>(high)), high};
}

// Shifts within bytes: of the bits in `mask` after the shift only.
template <int kBits>
PACTRAIN_AVX2 inline __m256i Left(__m256i bytes, int mask) {
  return _mm256_and_si256(_mm256_slli_epi16(bytes, kBits), All(mask));
}
template <int kBits>
PACTRAIN_AVX2 inline __m256i Right(__m256i bytes, int mask) {
  return _mm256_and_si256(_mm256_srli_epi16(bytes, kBits), All(mask));
}
PACTRAIN_AVX2 inline __m256i Or(__m256i a, __m256i b, __m256i c) {
  return _mm256_or_si256(a, _mm256_or_si256(b, c));
}

PACTRAIN_AVX2 inline void Pack3(In s, Out b) {
  __m256i word = s[4];
  for (int i = 3; i >= 0; --i) word = Join<3>(s[i], word);
  b.Set(0, word);
}

PACTRAIN_AVX2 inline void Unpack3(In b, Out s) {
  Parts parts = {b[0], b[0]};
  for (int i = 0; i < 4; ++i) {
    parts = Split<3>(parts.high);
    s.Set(i, parts.low);
  }
  s.Set(4, parts.high);
}

PACTRAIN_AVX2 inline __m256i Word5(In s, int i) {
  return Join<5>(s[3 * i], Join<5>(s[3 * i + 1], s[3 * i + 2]));
}

PACTRAIN_AVX2 inline void SetWord5(__m256i word, int i, Out s) {
  const Parts first = Split<5>(word);
  const Parts second = Split<5>(first.high);
  s.Set(3 * i, first.low);
  s.Set(3 * i + 1, second.low);
  s.Set(3 * i + 2, second.high);
}

PACTRAIN_AVX2 inline void Pack5(In s, Out b) {
  const __m256i eighth = Word5(s, 7);
  for (int i = 0; i < 7; ++i) {
    const __m256i bit =
        _mm256_and_si256(_mm256_slli_epi16(eighth, 7 - i), All(0x80));
    b.Set(i, _mm256_or_si256(Word5(s, i), bit));
  }
}

PACTRAIN_AVX2 inline void Unpack5(In b, Out s) {
  __m256i eighth = _mm256_setzero_si256();
  for (int i = 0; i < 7; ++i) {
    const __m256i bit = _mm256_and_si256(b[i], All(0x80));
    eighth = _mm256_or_si256(eighth, _mm256_srli_epi16(bit, 7 - i));
    SetWord5(_mm256_and_si256(b[i], All(0x7f)), i, s);
  }
  SetWord5(eighth, 7, s);
}

PACTRAIN_AVX2 inline void Pack7(In s, Out b) {
  const Parts shared = Split<3>(s[10]);
  const Parts x = Split<5>(Join<7>(s[8], shared.high));
  const Parts y = Split<5>(Join<7>(s[9], shared.low));
  const __m256i digits[4] = {x.low, x.high, y.low, y.high};
  for (int i = 0; i < 4; ++i) {
    b.Set(i, Join<5>(digits[i], Join<7>(s[2 * i], s[2 * i + 1])));
  }
}

PACTRAIN_AVX2 inline void Unpack7(In b, Out s) {
  __m256i digits[4];
  for (int i = 0; i < 4; ++i) {
    const Parts byte = Split<5>(b[i]);
    const Parts pair = Split<7>(byte.high);
    digits[i] = byte.low;
    s.Set(2 * i, pair.low);
    s.Set(2 * i + 1, pair.high);
  }
  const Parts x = Split<7>(Join<5>(digits[0], digits[1]));
  const Parts y = Split<7>(Join<5>(digits[2], digits[3]));
  s.Set(8, x.low);
  s.Set(9, y.low);
  const __m256i bad = _mm256_cmpeq_epi8(y.high, All(3));
  s.Set(10, _mm256_or_si256(Join<3>(y.high, x.high), bad));
}

PACTRAIN_AVX2 inline void Pack15(In s, Out b) {
  b.Set(0, _mm256_or_si256(s[0], Left<4>(s[1], 0xf0)));
}

PACTRAIN_AVX2 inline void Unpack15(In b, Out s) {
  s.Set(0, _mm256_and_si256(b[0], All(15)));
  s.Set(1, Right<4>(b[0], 15));
}

PACTRAIN_AVX2 inline void Pack31(In s, Out b) {
  for (int i = 0; i < 3; ++i) {
    b.Set(i, _mm256_or_si256(s[i], Left<5>(s[5 + i], 0xe0)));
  }
  b.Set(3, Or(s[3], Left<2>(s[5], 0x60), Left<4>(s[7], 0x80)));
  b.Set(4, Or(s[4], Left<2>(s[6], 0x60), Left<3>(s[7], 0x80)));
}

PACTRAIN_AVX2 inline void Unpack31(In b, Out s) {
  for (int i = 0; i < 5; ++i) s.Set(i, _mm256_and_si256(b[i], All(31)));
  for (int i = 0; i < 2; ++i) {
    s.Set(5 + i, _mm256_or_si256(Right<5>(b[i], 7), Right<2>(b[3 + i], 0x18)));
  }
  s.Set(7, Or(Right<5>(b[2], 7), Right<4>(b[3], 8), Right<3>(b[4], 16)));
}

// The last columns overlap those before: they are written twice alike.
template <void (*kColumns32)(In, Out)>
PACTRAIN_AVX2 void Columns(const uint8_t* in, size_t plane, uint8_t* out) {
  for (size_t j = 0; j < plane; j += kColumns) {
    const size_t at = std::min(j, plane - kColumns);
    kColumns32(In(in + at, plane), Out(out + at, plane));
  }
}

}  // namespace

void Avx2Pack(Levels levels, const uint8_t* in, size_t plane, uint8_t* out) {
  if (plane < kColumns) return ReferencePack(levels, in, plane, out);
  switch (levels) {
    case Levels::k3:
      return Columns<Pack3>(in, plane, out);
    case Levels::k5:
      return Columns<Pack5>(in, plane, out);
    case Levels::k7:
      return Columns<Pack7>(in, plane, out);
    case Levels::k15:
      return Columns<Pack15>(in, plane, out);
    case Levels::k31:
      return Columns<Pack31>(in, plane, out);
  }
}

void Avx2Unpack(Levels levels, const uint8_t* in, size_t plane, uint8_t* out) {
  if (plane < kColumns) return ReferenceUnpack(levels, in, plane, out);
  switch (levels) {
    case Levels::k3:
      return Columns<Unpack3>(in, plane, out);
    case Levels::k5:
      return Columns<Unpack5>(in, plane, out);
    case Levels::k7:
      return Columns<Unpack7>(in, plane, out);
    case Levels::k15:
      return Columns<Unpack15>(in, plane, out);
    case Levels::k31:
      return Columns<Unpack31>(in, plane, out);
  }
}

}  // namespace pactrain::kernels::levels

#endif  // defined(__x86_64__)
