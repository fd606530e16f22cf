// The n-level codec: an element in 1 to 5 bits, for gradients between sites.
//
// A block of 256 elements has one scale S: bf16, rounded up, of
// min(max|x|, c rms(x)); c = 2.5 for 3 levels, 3 for 5 and 7, 3.6 for 15, none
// for 31. With h = (levels - 1) / 2, step delta = S / h and a dither u, uniform
// over (0, 1) and known to both ends:
//   encode  q = floor(clip(x / delta, -h, h) + u),  an integer in [-h, h]
//   decode  (q - (u - 1/2)) delta
// The integers travel in a prefix code where that is shorter than packing them,
// as it is for all but strange values: of a Gaussian's 7 levels 2.3 bits.
//
// This is subtractive dither (L. G. Roberts, 1962; L. Schuchman, 1964): where
// nothing is clipped the error is uniform over +-delta / 2 and independent of
// x, so a mean over many steps is unbiased, and its variance delta^2 / 12 is
// half of what rounding at random costs on average for the same bits. The
// latter, with three levels and a scale per layer, is the ternary mode of
// PacTrain (arXiv 2505.18563, after TernGrad).
//
// u comes from a counter-based generator over (key, element number): no state,
// so a repeated encode gives the same bytes, and the decoder makes its own.
// Two encoders whose results are added need different keys: with equal ones the
// errors of like inputs are alike, and add up instead of averaging out.
//
// Special values: a block with NaN or Inf decodes to the NaN 0x7fc00000
// everywhere; a block with S < 2^-104 (all zero, denormal, ...) decodes to +0;
// what is beyond 2^126 is clipped to that. -0 counts as 0.
//
// Every variant writes the same bytes, and decodes them to the same bits on
// every CPU, with denormals flushed or not: decode is one integer times one
// float per block, rounded once. (Flushed denormals may change the scale that
// an encoder measures: its bytes hold what all decode.) What travels is laid
// out in levels_format.h.
//
// Pointers need the alignment of their type only; buffers may not overlap.
// Thread-safe.
#ifndef PACTRAIN_KERNELS_LEVELS_H_
#define PACTRAIN_KERNELS_LEVELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace pactrain::kernels {

enum class Levels : uint8_t { k3 = 3, k5 = 5, k7 = 7, k15 = 15, k31 = 31 };

inline constexpr size_t kLevelsBlock = 256;             // Elements per scale.
inline constexpr size_t kMaxLevelsElements = 64 << 10;  // Of one call.
// `first_element` is a multiple of this.
inline constexpr uint32_t kDitherAlignment = 16;

struct LevelsDither {
  uint64_t key = 0;
  // The number of in[0] or out[0] among all elements that share the key. How
  // they are cut into calls does not change their dither.
  uint32_t first_element = 0;
};

// What one encode did, over the blocks without NaN or Inf. Sums in a fixed
// order: equal on every variant.
struct LevelsNoise {
  double error_squared = 0;  // Sum of (x - decoded)^2, clipping included.
  double input_squared = 0;  // Sum of x^2.
  double clip_squared = 0;   // Sum of (x - clipped x)^2: the biased part.
};

// The most that the encoded form takes: what it is packed. `elements` <=
// kMaxLevelsElements, here and below.
size_t MaxLevelsBytes(Levels levels, size_t elements);

// How the integers travel. What is decoded is the same.
enum class LevelsForm {
  kPacked,   // MaxLevelsBytes().
  kShorter,  // Mostly fewer; takes half as long again, and twice to decode.
};

// Writes *bytes bytes, at most MaxLevelsBytes(). `decoded`, unless null, gets
// what DecodeLevels() makes of them, for less work.
LevelsNoise EncodeLevels(Levels levels, const LevelsDither& dither,
                         LevelsForm form, const float* in, size_t elements,
                         uint8_t* out, size_t* bytes, float* decoded);

// False if `in` is none that EncodeLevels writes: a scale that is negative,
// infinite, out of range or another NaN than 0x7fc0, a packed word that is too
// large, padding other than zeros, more or fewer bytes than the elements take.
// `out` is then of no meaning. (Codes under a scale of zero or NaN are only
// looked at for their range, and the prefix code need not be the shortest.)
bool DecodeLevels(Levels levels, const LevelsDither& dither,
                  std::span<const uint8_t> in, size_t elements, float* out);

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_LEVELS_H_
