// The variants of every op: a plain reference, and one per instruction set.
// Used by dispatch.cc and by tests, which hold each variant to the reference
// bit for bit. Contracts are in the op's header.
#ifndef PACTRAIN_KERNELS_VARIANTS_H_
#define PACTRAIN_KERNELS_VARIANTS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/levels.h"
#include "kernels/mask_plan.h"
#include "kernels/nonzero.h"

namespace pactrain::kernels {

struct Variant {
  const char* name;
  void (*compact)(const MaskPlan&, TileRange, const float*, float*);
  uint64_t (*compact_and_count)(const MaskPlan&, TileRange, const float*,
                                float*);
  uint64_t (*count_outside)(const MaskPlan&, TileRange, const float*);
  ZeroChanges (*update_non_zero)(const float*, size_t, uint64_t*);
  void (*expand)(const MaskPlan&, TileRange, const float*, float*);
  void (*expand_divide)(const MaskPlan&, TileRange, const float*, float,
                        float*);
  void (*divide)(const float*, size_t, float, float*);
  void (*sum)(const float* const*, size_t, size_t, float*);
  void (*to_bf16)(const float*, size_t, uint16_t*);
  void (*from_bf16)(const uint16_t*, size_t, float*);
  LevelsNoise (*encode_levels)(Levels, const LevelsDither&, LevelsForm,
                               const float*, size_t, uint8_t*, size_t*, float*);
  bool (*decode_levels)(Levels, const LevelsDither&, std::span<const uint8_t>,
                        size_t, float*);
};

const Variant& ReferenceVariant();
// All that this CPU has: the reference first, then AVX2, then both of AVX-512,
// which differ in how they compact.
std::span<const Variant* const> Variants();
// The fastest of them. The first call times the last two (FasterCompact), the
// others wait for it.
const Variant& BestVariant();

// The one of the two that compacts faster: the least of four calls of each, in
// turn, on 1 MiB of which half is kept, by `now_ns`. 0.3 ms on Intel, 2 ms
// where one of them is microcode.
const Variant& FasterCompact(const Variant& a, const Variant& b,
                             int64_t (*now_ns)());

namespace reference {
void Compact(const MaskPlan& plan, TileRange tiles, const float* in,
             float* out);
uint64_t CompactAndCount(const MaskPlan& plan, TileRange tiles, const float* in,
                         float* out);
uint64_t CountOutside(const MaskPlan& plan, TileRange tiles, const float* in);
ZeroChanges UpdateNonZero(const float* in, size_t elements, uint64_t* words);
void Expand(const MaskPlan& plan, TileRange tiles, const float* in, float* out);
void ExpandDivide(const MaskPlan& plan, TileRange tiles, const float* in,
                  float divisor, float* out);
void Divide(const float* in, size_t elements, float divisor, float* out);
void Sum(const float* const* in, size_t buffers, size_t elements, float* out);
void ToBf16(const float* in, size_t elements, uint16_t* out);
void FromBf16(const uint16_t* in, size_t elements, float* out);
LevelsNoise EncodeLevels(Levels levels, const LevelsDither& dither,
                         LevelsForm form, const float* in, size_t elements,
                         uint8_t* out, size_t* bytes, float* decoded);
bool DecodeLevels(Levels levels, const LevelsDither& dither,
                  std::span<const uint8_t> in, size_t elements, float* out);
}  // namespace reference

#if defined(__x86_64__)
namespace avx2 {
decltype(reference::Compact) Compact;
decltype(reference::CompactAndCount) CompactAndCount;
decltype(reference::CountOutside) CountOutside;
decltype(reference::UpdateNonZero) UpdateNonZero;
decltype(reference::Expand) Expand;
decltype(reference::ExpandDivide) ExpandDivide;
decltype(reference::Divide) Divide;
decltype(reference::Sum) Sum;
decltype(reference::ToBf16) ToBf16;
decltype(reference::FromBf16) FromBf16;
decltype(reference::EncodeLevels) EncodeLevels;
decltype(reference::DecodeLevels) DecodeLevels;
}  // namespace avx2

namespace avx512 {
decltype(reference::Compact) CompactInRegister, CompactToMemory;
decltype(reference::CompactAndCount) CompactAndCountInRegister,
    CompactAndCountToMemory;
decltype(reference::CountOutside) CountOutside;
decltype(reference::UpdateNonZero) UpdateNonZero;
decltype(reference::Expand) Expand;
decltype(reference::ExpandDivide) ExpandDivide;
decltype(reference::Divide) Divide;
decltype(reference::Sum) Sum;
decltype(reference::ToBf16) ToBf16;
decltype(reference::FromBf16) FromBf16;
decltype(reference::EncodeLevels) EncodeLevels;
decltype(reference::DecodeLevels) DecodeLevels;
}  // namespace avx512
#endif

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_VARIANTS_H_
