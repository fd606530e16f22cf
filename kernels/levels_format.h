// What the variants of the n-level codec share: the form on the wire, the
// generator of the dither, and a block's scale. Used by levels*.cc and their
// tests only.
//
// The encoded form of n elements:
//   ceil(n / 256) scales, bf16, little-endian
//   a byte: the number of a prefix code, and then what prefix_codes.h says; or
//     0, and then
//   W planes of P bytes: K codes are packed into W bytes, planar:
//     P = ceil(n / K); column j packs the codes of elements j, P + j, 2P + j...
//     into byte j of each plane. A code is q + h; codes past n are zero.
//
//   levels  K   W   bits  how (s0, s1, ...: the codes of one column)
//   3       5   1   1.6   s0 + 3 s1 + 9 s2 + 27 s3 + 81 s4
//   5       24  7   2.33  eight words of three codes, s0 + 5 s1 + 25 s2 < 125;
//                         seven are the lower bits of a byte each, the bits of
//                         the eighth are the top bits of the seven
//   7       11  4   2.91  byte i = digit i + 5 (s2i + 7 s2i+1) < 245; the four
//                         digits under 5 hold the last three codes, as
//                         s8 + 7 (s10 / 3) and s9 + 7 (s10 % 3), both < 25
//   15      2   1   4     nibbles
//   31      8   5   5     s0 to s4 are the lower bits of a byte each, the upper
//                         three bits of the five hold s5, s6, s7
//
// So a vector packs or unpacks as many columns as it has bytes, without a
// gather, a shift across lanes or a 32-bit division.
#ifndef PACTRAIN_KERNELS_LEVELS_FORMAT_H_
#define PACTRAIN_KERNELS_LEVELS_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/levels.h"

namespace pactrain::kernels::levels {

struct Packing {
  size_t codes;  // K
  size_t bytes;  // W
};

constexpr Packing PackingOf(Levels levels) {
  switch (levels) {
    case Levels::k3:
      return {5, 1};
    case Levels::k5:
      return {24, 7};
    case Levels::k7:
      return {11, 4};
    case Levels::k15:
      return {2, 1};
    case Levels::k31:
      return {8, 5};
  }
  __builtin_unreachable();
}

constexpr size_t BlockCount(size_t elements) {
  return (elements + kLevelsBlock - 1) / kLevelsBlock;
}
// P.
constexpr size_t PlaneBytes(Levels levels, size_t elements) {
  const size_t codes = PackingOf(levels).codes;
  return (elements + codes - 1) / codes;
}
constexpr int Half(Levels levels) { return (static_cast<int>(levels) - 1) / 2; }

// Room for all codes of a call, K * P of them.
inline constexpr size_t kCodeBuffer = kMaxLevelsElements + 32;

// u = (Bits(element) + 1/2) / 65536. One 32-bit hash serves two elements.
struct DitherStream {
  explicit DitherStream(uint64_t key) {
    // SplitMix64's finalizer: keys that differ in one bit share nothing.
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9;
    key = (key ^ key >> 27) * 0x94d049bb133111eb;
    key ^= key >> 31;
    low = static_cast<uint32_t>(key);
    high = static_cast<uint32_t>(key >> 32);
  }

  static constexpr uint32_t kStep = 0x9e3779b9;  // Between counters.
  static constexpr uint32_t kMultiplier1 = 0x21f0aaad;
  static constexpr uint32_t kMultiplier2 = 0x735a2d97;

  uint32_t Hash(uint32_t counter) const {
    uint32_t x = low + counter * kStep;
    x = (x ^ x >> 16) * kMultiplier1;
    x = (x ^ x >> 15 ^ high) * kMultiplier2;
    return x ^ x >> 15;
  }
  // Of sixteen elements the first eight take the lower halves of eight hashes,
  // the others the upper halves: eight lanes of 32 bits need no shuffle.
  uint32_t Bits(uint32_t element) const {
    const uint32_t hash = Hash(element / 16 * 8 + element % 8);
    return (element & 8) != 0 ? hash >> 16 : hash & 0xffff;
  }

  uint32_t low;
  uint32_t high;
};

inline constexpr uint16_t kNaNScale = 0x7fc0;
inline constexpr uint16_t kMinScale = 0x0b80;  // 2^-104
// 2^126: so that neither S h, h / S nor 1.5 S leaves the normal numbers.
inline constexpr uint16_t kMaxScale = 0x7e80;
inline constexpr uint32_t kInfinityBits = 0x7f800000;

// The scale of a block, from the bits of max|x| and the sum of squares. 0: the
// block decodes to zeros.
uint16_t ScaleOf(Levels levels, uint32_t max_bits, double sum_of_squares,
                 size_t elements);
// Zero, NaN, or between the limits.
bool IsScale(uint16_t scale);

// A block's numbers for a scale between the limits.
struct Step {
  Step(Levels levels, uint16_t scale);
  float scale;
  float half;     // h
  float inverse;  // h / S: y = x * inverse.
  // Decoded = (2 (65536 q - bits + 32768) - 1) * unit; unit = delta / 2^17. The
  // integer is exact in a float, and no product is denormal.
  float unit;
};

// Eight lanes, element i in lane i % 8: what a vector of doubles sums up to.
inline double SumLanes(const double lanes[8]) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// From eight lanes of (y - clipped y)^2. A block whose scale covers all of it
// has exactly none, whatever y was rounded to.
double ClipSquared(const Step& step, uint32_t max_bits, const float lanes[8]);

// What a variant has to bring.
struct Ops {
  // One block of `elements` <= 256, of which the first has number `first`:
  // returns its scale, writes its codes, adds its noise to *noise.
  uint16_t (*encode_block)(Levels levels, const DitherStream& dither,
                           uint32_t first, const float* in, size_t elements,
                           uint8_t* codes, LevelsNoise* noise);
  // REQUIRES: a scale that is neither zero nor NaN.
  void (*decode_block)(Levels levels, const DitherStream& dither,
                       uint32_t first, uint16_t scale, const uint8_t* codes,
                       size_t elements, float* out);
  // All columns: K * plane codes to or from W * plane bytes. Any bytes may be
  // unpacked: what pack() does not write gives a code that is too large.
  void (*pack)(Levels levels, const uint8_t* codes, size_t plane, uint8_t* out);
  void (*unpack)(Levels levels, const uint8_t* in, size_t plane,
                 uint8_t* codes);
  // 0 of none.
  uint8_t (*largest)(const uint8_t* codes, size_t elements);
};

extern const Ops kReferenceOps;
void ReferencePack(Levels levels, const uint8_t* codes, size_t plane,
                   uint8_t* out);
void ReferenceUnpack(Levels levels, const uint8_t* in, size_t plane,
                     uint8_t* codes);
#if defined(__x86_64__)
extern const Ops kAvx2Ops;
extern const Ops kAvx512Ops;
void Avx2Pack(Levels levels, const uint8_t* codes, size_t plane, uint8_t* out);
void Avx2Unpack(Levels levels, const uint8_t* in, size_t plane, uint8_t* codes);
uint8_t Avx2Largest(const uint8_t* codes, size_t elements);
#endif

LevelsNoise Encode(const Ops& ops, Levels levels, const LevelsDither& dither,
                   LevelsForm form, const float* in, size_t elements,
                   uint8_t* out, size_t* bytes, float* decoded);
bool Decode(const Ops& ops, Levels levels, const LevelsDither& dither,
            std::span<const uint8_t> in, size_t elements, float* out);

}  // namespace pactrain::kernels::levels

#endif  // PACTRAIN_KERNELS_LEVELS_FORMAT_H_
