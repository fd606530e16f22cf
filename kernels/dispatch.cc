// Chooses the variant of each op once, by what this CPU has.
#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/compact.h"
#include "kernels/expand.h"
#include "kernels/levels.h"
#include "kernels/sum.h"
#include "kernels/variants.h"

namespace pactrain::kernels {

const Variant& ReferenceVariant() {
  static constexpr Variant kVariant = {"reference",
                                       reference::Compact,
                                       reference::CompactAndCount,
                                       reference::CountOutside,
                                       reference::Expand,
                                       reference::ExpandDivide,
                                       reference::Divide,
                                       reference::Sum,
                                       reference::ToBf16,
                                       reference::FromBf16,
                                       reference::EncodeLevels,
                                       reference::DecodeLevels};
  return kVariant;
}

const Variant* Avx2Variant() {
#if defined(__x86_64__)
  static constexpr Variant kVariant = {"avx2",
                                       avx2::Compact,
                                       avx2::CompactAndCount,
                                       avx2::CountOutside,
                                       avx2::Expand,
                                       avx2::ExpandDivide,
                                       avx2::Divide,
                                       avx2::Sum,
                                       avx2::ToBf16,
                                       avx2::FromBf16,
                                       avx2::EncodeLevels,
                                       avx2::DecodeLevels};
  return __builtin_cpu_supports("avx2") ? &kVariant : nullptr;
#else
  return nullptr;
#endif
}

const Variant& BestVariant() {
  static const Variant& best =
      Avx2Variant() != nullptr ? *Avx2Variant() : ReferenceVariant();
  return best;
}

void Compact(const MaskPlan& plan, TileRange tiles, const float* in,
             float* out) {
  BestVariant().compact(plan, tiles, in, out);
}

uint64_t CompactAndCount(const MaskPlan& plan, TileRange tiles, const float* in,
                         float* out) {
  return BestVariant().compact_and_count(plan, tiles, in, out);
}

uint64_t CountOutside(const MaskPlan& plan, TileRange tiles, const float* in) {
  return BestVariant().count_outside(plan, tiles, in);
}

void Expand(const MaskPlan& plan, TileRange tiles, const float* in,
            float* out) {
  BestVariant().expand(plan, tiles, in, out);
}

void ExpandDivide(const MaskPlan& plan, TileRange tiles, const float* in,
                  float divisor, float* out) {
  BestVariant().expand_divide(plan, tiles, in, divisor, out);
}

void Divide(const float* in, size_t elements, float divisor, float* out) {
  BestVariant().divide(in, elements, divisor, out);
}

void Sum(const float* const* in, size_t buffers, size_t elements, float* out) {
  BestVariant().sum(in, buffers, elements, out);
}

void ToBf16(const float* in, size_t elements, uint16_t* out) {
  BestVariant().to_bf16(in, elements, out);
}

void FromBf16(const uint16_t* in, size_t elements, float* out) {
  BestVariant().from_bf16(in, elements, out);
}

LevelsNoise EncodeLevels(Levels levels, const LevelsDither& dither,
                         const float* in, size_t elements, uint8_t* out) {
  return BestVariant().encode_levels(levels, dither, in, elements, out);
}

bool DecodeLevels(Levels levels, const LevelsDither& dither, const uint8_t* in,
                  size_t elements, float* out) {
  return BestVariant().decode_levels(levels, dither, in, elements, out);
}

}  // namespace pactrain::kernels
