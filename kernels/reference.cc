// The plain variant of every op: what the others must equal bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/variants.h"

namespace pactrain::kernels::reference {
namespace {

bool Kept(const MaskPlan& plan, size_t i) {
  return plan.words()[i / 64] >> (i % 64) & 1;
}

size_t FirstElement(TileRange tiles) {
  return tiles.first * MaskPlan::kTileElements;
}

size_t EndElement(const MaskPlan& plan, TileRange tiles) {
  return std::min(tiles.end * MaskPlan::kTileElements, plan.elements());
}

}  // namespace

void Compact(const MaskPlan& plan, TileRange tiles, const float* in,
             float* out) {
  out += plan.OutputOffset(tiles.first);
  const size_t end = EndElement(plan, tiles);
  for (size_t i = FirstElement(tiles); i < end; ++i) {
    if (Kept(plan, i)) std::memcpy(out++, in + i, sizeof(float));
  }
}

uint64_t CompactAndCount(const MaskPlan& plan, TileRange tiles, const float* in,
                         float* out) {
  Compact(plan, tiles, in, out);
  return CountOutside(plan, tiles, in);
}

uint64_t CountOutside(const MaskPlan& plan, TileRange tiles, const float* in) {
  uint64_t count = 0;
  const size_t end = EndElement(plan, tiles);
  for (size_t i = FirstElement(tiles); i < end; ++i) {
    uint32_t bits;
    std::memcpy(&bits, in + i, sizeof(bits));
    if (!Kept(plan, i) && (bits & 0x7fffffff) != 0) ++count;
  }
  return count;
}

ZeroChanges UpdateNonZero(const float* in, size_t elements, uint64_t* words) {
  ZeroChanges changes;
  for (size_t first = 0; first < elements; first += 64, ++words) {
    const size_t count = std::min<size_t>(64, elements - first);
    uint64_t now = 0;
    for (size_t i = 0; i < count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, in + first + i, sizeof(bits));
      now |= uint64_t{(bits & 0x7fffffff) != 0} << i;
    }
    changes.gone += static_cast<uint64_t>(std::popcount(*words & ~now));
    changes.back += static_cast<uint64_t>(std::popcount(now & ~*words));
    *words = now;
  }
  return changes;
}

void Expand(const MaskPlan& plan, TileRange tiles, const float* in,
            float* out) {
  in += plan.OutputOffset(tiles.first);
  const size_t end = EndElement(plan, tiles);
  for (size_t i = FirstElement(tiles); i < end; ++i) {
    out[i] = 0.0f;
    if (Kept(plan, i)) std::memcpy(out + i, in++, sizeof(float));
  }
}

void ExpandDivide(const MaskPlan& plan, TileRange tiles, const float* in,
                  float divisor, float* out) {
  in += plan.OutputOffset(tiles.first);
  const size_t end = EndElement(plan, tiles);
  for (size_t i = FirstElement(tiles); i < end; ++i) {
    out[i] = Kept(plan, i) ? *in++ / divisor : 0.0f;
  }
}

void Divide(const float* in, size_t elements, float divisor, float* out) {
  for (size_t i = 0; i < elements; ++i) out[i] = in[i] / divisor;
}

void Sum(const float* const* in, size_t buffers, size_t elements, float* out) {
  for (size_t i = 0; i < elements; ++i) {
    float sum = in[0][i];
    for (size_t b = 1; b < buffers; ++b) sum += in[b][i];
    out[i] = std::isnan(sum) ? std::bit_cast<float>(0x7fc00000u) : sum;
  }
}

void ToBf16(const float* in, size_t elements, uint16_t* out) {
  for (size_t i = 0; i < elements; ++i) {
    uint32_t bits;
    std::memcpy(&bits, in + i, sizeof(bits));
    if ((bits & 0x7fffffff) > 0x7f800000) {
      out[i] = static_cast<uint16_t>(bits >> 16 | 0x40);
    } else {
      out[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
  }
}

void FromBf16(const uint16_t* in, size_t elements, float* out) {
  for (size_t i = 0; i < elements; ++i) {
    const uint32_t bits = static_cast<uint32_t>(in[i]) << 16;
    std::memcpy(out + i, &bits, sizeof(bits));
  }
}

}  // namespace pactrain::kernels::reference
