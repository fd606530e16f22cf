#include "kernels/levels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/levels_format.h"
#include "kernels/prefix_codes.h"

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

constexpr uint8_t kPacked = 0;  // In the place of a prefix code's number.

// A block's values, from its scale and its codes.
void DecodeScaled(const Ops& ops, Levels levels, const DitherStream& stream,
                  uint32_t first, uint16_t scale, const uint8_t* codes,
                  size_t elements, float* out) {
  if (scale == 0) {
    std::fill_n(out, elements, 0.0f);
  } else if (scale == kNaNScale) {
    std::fill_n(out, elements, std::bit_cast<float>(0x7fc00000u));
  } else {
    ops.decode_block(levels, stream, first, scale, codes, elements, out);
  }
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
                   LevelsForm form, const float* in, size_t elements,
                   uint8_t* out, size_t* bytes, float* decoded) {
  *bytes = 0;
  if (elements == 0) return {};
  const DitherStream stream(dither.key);
  uint8_t codes[kCodeBuffer];
  LevelsNoise noise;
  uint8_t* to = out;
  for (size_t i = 0; i < elements; i += kLevelsBlock) {
    const uint32_t first = dither.first_element + static_cast<uint32_t>(i);
    const size_t count = std::min(kLevelsBlock, elements - i);
    const uint16_t scale = ops.encode_block(levels, stream, first, in + i,
                                            count, codes + i, &noise);
    if (decoded != nullptr) {
      DecodeScaled(ops, levels, stream, first, scale, codes + i, count,
                   decoded + i);
    }
    std::memcpy(to, &scale, sizeof(scale));
    to += sizeof(scale);
  }
  const size_t plane = PlaneBytes(levels, elements);
  const size_t packed = plane * PackingOf(levels).bytes;
  int number = kPacked;
  size_t coded = 0;
  if (form == LevelsForm::kShorter) {
    number = ChoosePrefixCode(levels, codes, elements);
    coded = WritePrefixCoded(levels, number, codes, elements, to + 1, packed);
  }
  if (coded > 0) {
    *to++ = static_cast<uint8_t>(number);
    to += coded;
  } else {
    *to++ = kPacked;
    std::fill(codes + elements, codes + plane * PackingOf(levels).codes, 0);
    ops.pack(levels, codes, plane, to);
    to += packed;
  }
  *bytes = static_cast<size_t>(to - out);
  return noise;
}

namespace {

// The codes behind the scales.
bool ReadPacked(const Ops& ops, Levels levels, std::span<const uint8_t> in,
                size_t elements, uint8_t* codes) {
  const size_t plane = PlaneBytes(levels, elements);
  if (in.size() != plane * PackingOf(levels).bytes) return false;
  ops.unpack(levels, in.data(), plane, codes);
  const size_t padding = plane * PackingOf(levels).codes - elements;
  return ops.largest(codes, elements) < static_cast<int>(levels) &&
         ops.largest(codes + elements, padding) == 0;
}

}  // namespace

bool Decode(const Ops& ops, Levels levels, const LevelsDither& dither,
            std::span<const uint8_t> in, size_t elements, float* out) {
  if (elements == 0) return in.empty();
  const DitherStream stream(dither.key);
  const size_t scales = 2 * BlockCount(elements);
  if (in.size() <= scales) return false;
  const uint8_t number = in[scales];
  const std::span<const uint8_t> written = in.subspan(scales + 1);
  uint8_t codes[kCodeBuffer];
  if (number > PrefixCodeCount(levels)) return false;
  if (!(number == kPacked
            ? ReadPacked(ops, levels, written, elements, codes)
            : ReadPrefixCoded(levels, number, written, codes, elements))) {
    return false;
  }
  for (size_t i = 0; i < elements; i += kLevelsBlock) {
    const uint16_t scale = LoadScale(in.data(), i / kLevelsBlock);
    if (!IsScale(scale)) return false;
    DecodeScaled(ops, levels, stream,
                 dither.first_element + static_cast<uint32_t>(i), scale,
                 codes + i, std::min(kLevelsBlock, elements - i), out + i);
  }
  return true;
}

}  // namespace levels

size_t MaxLevelsBytes(Levels levels, size_t elements) {
  if (elements == 0) return 0;
  return 2 * levels::BlockCount(elements) + 1 +
         levels::PlaneBytes(levels, elements) * levels::PackingOf(levels).bytes;
}

}  // namespace pactrain::kernels
