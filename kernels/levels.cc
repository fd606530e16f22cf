#include "kernels/levels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/levels_format.h"

namespace pactrain::kernels {

static_assert(std::endian::native == std::endian::little);

namespace levels {
namespace {

// In units of rms, chosen per level count: what less clipping would add to the
// step's noise against what it takes from the clip's. Infinite: no clip.
double ClipOf(Levels levels) {
  switch (levels) {
    case Levels::k3:
      return 2.5;
    case Levels::k5:
    case Levels::k7:
      return 3.0;
    case Levels::k15:
      return 3.6;
    case Levels::k31:
      return INFINITY;
  }
  __builtin_unreachable();
}

uint16_t LoadScale(const uint8_t* scales, size_t block) {
  uint16_t scale;
  std::memcpy(&scale, scales + 2 * block, sizeof(scale));
  return scale;
}

}  // namespace

uint16_t ScaleOf(Levels levels, uint32_t max_bits, double sum_of_squares,
                 size_t elements) {
  if (max_bits >= kInfinityBits) return kNaNScale;
  const double max = std::bit_cast<float>(max_bits);
  const double rms = std::sqrt(sum_of_squares / static_cast<double>(elements));
  const double limit = max == 0 ? 0 : std::min(max, ClipOf(levels) * rms);
  const auto rounded = static_cast<float>(limit);
  uint32_t bits = std::bit_cast<uint32_t>(rounded);
  if (rounded < limit) ++bits;
  bits = std::min<uint32_t>((bits + 0xffff) >> 16, kMaxScale);
  return bits < kMinScale ? 0 : static_cast<uint16_t>(bits);
}

bool IsScale(uint16_t scale) {
  return scale == 0 || scale == kNaNScale ||
         (scale >= kMinScale && scale <= kMaxScale);
}

Step::Step(Levels levels, uint16_t bf16)
    : scale(std::bit_cast<float>(uint32_t{bf16} << 16)),
      half(static_cast<float>(Half(levels))),
      inverse(half / scale),
      unit(scale / (half * 131072.0f)) {}

double ClipSquared(const Step& step, uint32_t max_bits, const float lanes[8]) {
  if (max_bits <= std::bit_cast<uint32_t>(step.scale)) return 0;
  double wide[8];
  std::copy_n(lanes, 8, wide);
  const double delta = double{step.scale} / step.half;
  return SumLanes(wide) * (delta * delta);
}

LevelsNoise Encode(const Ops& ops, Levels levels, const LevelsDither& dither,
                   const float* in, size_t elements, uint8_t* out) {
  const DitherStream stream(dither.key);
  const size_t plane = PlaneBytes(levels, elements);
  uint8_t codes[kCodeBuffer];
  LevelsNoise noise;
  for (size_t i = 0; i < elements; i += kLevelsBlock) {
    const uint16_t scale = ops.encode_block(
        levels, stream, dither.first_element + static_cast<uint32_t>(i), in + i,
        std::min(kLevelsBlock, elements - i), codes + i, &noise);
    std::memcpy(out, &scale, sizeof(scale));
    out += sizeof(scale);
  }
  std::fill(codes + elements, codes + plane * PackingOf(levels).codes, 0);
  ops.pack(levels, codes, plane, out);
  return noise;
}

bool Decode(const Ops& ops, Levels levels, const LevelsDither& dither,
            const uint8_t* in, size_t elements, float* out) {
  const DitherStream stream(dither.key);
  const size_t plane = PlaneBytes(levels, elements);
  const size_t padded = plane * PackingOf(levels).codes;
  uint8_t codes[kCodeBuffer];
  ops.unpack(levels, in + 2 * BlockCount(elements), plane, codes);
  if (ops.largest(codes, elements) >= static_cast<int>(levels)) return false;
  if (ops.largest(codes + elements, padded - elements) != 0) return false;
  for (size_t i = 0; i < elements; i += kLevelsBlock) {
    const uint16_t scale = LoadScale(in, i / kLevelsBlock);
    if (!IsScale(scale)) return false;
    const size_t count = std::min(kLevelsBlock, elements - i);
    if (scale == 0) {
      std::fill_n(out + i, count, 0.0f);
    } else if (scale == kNaNScale) {
      std::fill_n(out + i, count, std::bit_cast<float>(0x7fc00000u));
    } else {
      ops.decode_block(levels, stream,
                       dither.first_element + static_cast<uint32_t>(i), scale,
                       codes + i, count, out + i);
    }
  }
  return true;
}

}  // namespace levels

size_t LevelsBytes(Levels levels, size_t elements) {
  return 2 * levels::BlockCount(elements) +
         levels::PlaneBytes(levels, elements) * levels::PackingOf(levels).bytes;
}

}  // namespace pactrain::kernels
