// Chooses the variant of each op once, by what this CPU has.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/compact.h"
#include "kernels/expand.h"
#include "kernels/levels.h"
#include "kernels/nonzero.h"
#include "kernels/sum.h"
#include "kernels/variants.h"

namespace pactrain::kernels {

const Variant& ReferenceVariant() {
  static constexpr Variant kVariant = {"reference",
                                       reference::Compact,
                                       reference::CompactAndCount,
                                       reference::CountOutside,
                                       reference::UpdateNonZero,
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

namespace {

#if defined(__x86_64__)
constexpr Variant kAvx2 = {"avx2",
                           avx2::Compact,
                           avx2::CompactAndCount,
                           avx2::CountOutside,
                           avx2::UpdateNonZero,
                           avx2::Expand,
                           avx2::ExpandDivide,
                           avx2::Divide,
                           avx2::Sum,
                           avx2::ToBf16,
                           avx2::FromBf16,
                           avx2::EncodeLevels,
                           avx2::DecodeLevels};

constexpr Variant Avx512(const char* name,
                         decltype(reference::Compact)* compact,
                         decltype(reference::CompactAndCount)* and_count) {
  return {name,
          compact,
          and_count,
          avx512::CountOutside,
          avx512::UpdateNonZero,
          avx512::Expand,
          avx512::ExpandDivide,
          avx512::Divide,
          avx512::Sum,
          avx512::ToBf16,
          avx512::FromBf16,
          avx512::EncodeLevels,
          avx512::DecodeLevels};
}
constexpr Variant kAvx512InRegister =
    Avx512("avx512-register", avx512::CompactInRegister,
           avx512::CompactAndCountInRegister);
constexpr Variant kAvx512ToMemory = Avx512(
    "avx512-memory", avx512::CompactToMemory, avx512::CompactAndCountToMemory);

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}

// Of AVX-512 what all its CPUs have since Skylake's servers.
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

std::vector<const Variant*> FindVariants() {
  std::vector<const Variant*> variants = {&ReferenceVariant()};
#if defined(__x86_64__)
  if (HasAvx2()) variants.push_back(&kAvx2);
  if (HasAvx512()) {
    variants.push_back(&kAvx512InRegister);
    variants.push_back(&kAvx512ToMemory);
  }
#endif
  return variants;
}

int64_t NowNs() {
  return std::chrono::nanoseconds(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const Variant& FindBest() {
#if defined(__x86_64__)
  if (HasAvx512()) {
    return FasterCompact(kAvx512InRegister, kAvx512ToMemory, NowNs);
  }
#endif
  return *Variants().back();
}

}  // namespace

std::span<const Variant* const> Variants() {
  static const std::vector<const Variant*> variants = FindVariants();
  return variants;
}

const Variant& BestVariant() {
  static const Variant& best = FindBest();
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

ZeroChanges UpdateNonZero(const float* in, size_t elements, uint64_t* words) {
  return BestVariant().update_non_zero(in, elements, words);
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
                         LevelsForm form, const float* in, size_t elements,
                         uint8_t* out, size_t* bytes, float* decoded) {
  return BestVariant().encode_levels(levels, dither, form, in, elements, out,
                                     bytes, decoded);
}

bool DecodeLevels(Levels levels, const LevelsDither& dither,
                  std::span<const uint8_t> in, size_t elements, float* out) {
  return BestVariant().decode_levels(levels, dither, in, elements, out);
}

}  // namespace pactrain::kernels
