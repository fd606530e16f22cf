// The plain variant of the n-level codec: what the others must equal byte for
// byte.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/levels_format.h"
#include "kernels/variants.h"

namespace pactrain::kernels {
namespace levels {
namespace {

constexpr int kLanes = 8;

float Decoded(int code, int half, uint32_t bits, float unit) {
  const int q = code - half;
  const int integer = 2 * (q * 65536 - static_cast<int>(bits) + 32768) - 1;
  return static_cast<float>(integer) * unit;
}

uint16_t EncodeBlock(Levels levels, const DitherStream& dither, uint32_t first,
                     const float* in, size_t elements, uint8_t* codes,
                     LevelsNoise* noise) {
  uint32_t max_bits = 0;
  double input[kLanes] = {};
  for (size_t i = 0; i < elements; ++i) {
    max_bits = std::max(max_bits, std::bit_cast<uint32_t>(in[i]) & 0x7fffffffu);
    const double x = in[i];
    input[i % kLanes] += x * x;
  }
  const double input_squared = SumLanes(input);
  const uint16_t bf16 = ScaleOf(levels, max_bits, input_squared, elements);
  if (bf16 == 0 || bf16 == kNaNScale) {
    // As zeros, which prefix codes have short words for.
    std::memset(codes, Half(levels), elements);
    if (bf16 == 0) noise->input_squared += input_squared;
    if (bf16 == 0) noise->error_squared += input_squared;
    return bf16;
  }
  const Step step(levels, bf16);
  double error[kLanes] = {};
  float clip[kLanes] = {};
  for (size_t i = 0; i < elements; ++i) {
    const uint32_t bits = dither.Bits(first + static_cast<uint32_t>(i));
    const float y = in[i] * step.inverse;
    const float clipped = std::max(std::min(y, step.half), -step.half);
    // floor(clipped + u) + h, without a negative number. Exact but for the sum.
    const float u = static_cast<float>(2 * bits + 1) / 131072.0f;
    codes[i] = static_cast<uint8_t>(clipped + (u + step.half));
    const float off = in[i] - Decoded(codes[i], Half(levels), bits, step.unit);
    error[i % kLanes] += static_cast<double>(off) * off;
    const float over = y - clipped;
    clip[i % kLanes] += over * over;
  }
  noise->input_squared += input_squared;
  noise->error_squared += SumLanes(error);
  noise->clip_squared += ClipSquared(step, max_bits, clip);
  return bf16;
}

void DecodeBlock(Levels levels, const DitherStream& dither, uint32_t first,
                 uint16_t scale, const uint8_t* codes, size_t elements,
                 float* out) {
  const Step step(levels, scale);
  for (size_t i = 0; i < elements; ++i) {
    out[i] = Decoded(codes[i], Half(levels),
                     dither.Bits(first + static_cast<uint32_t>(i)), step.unit);
  }
}

uint8_t Largest(const uint8_t* codes, size_t elements) {
  uint8_t largest = 0;
  for (size_t i = 0; i < elements; ++i) largest = std::max(largest, codes[i]);
  return largest;
}

}  // namespace

const Ops kReferenceOps = {EncodeBlock, DecodeBlock, ReferencePack,
                           ReferenceUnpack, Largest};

}  // namespace levels

namespace reference {

LevelsNoise EncodeLevels(Levels levels, const LevelsDither& dither,
                         LevelsForm form, const float* in, size_t elements,
                         uint8_t* out, size_t* bytes, float* decoded) {
  return levels::Encode(levels::kReferenceOps, levels, dither, form, in,
                        elements, out, bytes, decoded);
}

bool DecodeLevels(Levels levels, const LevelsDither& dither,
                  std::span<const uint8_t> in, size_t elements, float* out) {
  return levels::Decode(levels::kReferenceOps, levels, dither, in, elements,
                        out);
}

}  // namespace reference
}  // namespace pactrain::kernels
