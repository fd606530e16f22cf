// The variants of every op: a plain reference, and one per instruction set.
// Used by dispatch.cc and by tests, which hold each variant to the reference
// bit for bit. Contracts are in the op's header.
#ifndef PACTRAIN_KERNELS_VARIANTS_H_
#define PACTRAIN_KERNELS_VARIANTS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/levels.h"
#include "kernels/mask_plan.h"

namespace pactrain::kernels {

struct Variant {
  const char* name;
  void (*compact)(const MaskPlan&, TileRange, const float*, float*);
  uint64_t (*compact_and_count)(const MaskPlan&, TileRange, const float*,
                                float*);
  uint64_t (*count_outside)(const MaskPlan&, TileRange, const float*);
  void (*expand)(const MaskPlan&, TileRange, const float*, float*);
  void (*expand_divide)(const MaskPlan&, TileRange, const float*, float,
                        float*);
  void (*divide)(const float*, size_t, float, float*);
  void (*sum)(const float* const*, size_t, size_t, float*);
  void (*to_bf16)(const float*, size_t, uint16_t*);
  void (*from_bf16)(const uint16_t*, size_t, float*);
  LevelsNoise (*encode_levels)(Levels, const LevelsDither&, const float*,
                               size_t, uint8_t*);
  bool (*decode_levels)(Levels, const LevelsDither&, const uint8_t*, size_t,
                        float*);
};

const Variant& ReferenceVariant();
// Null where this CPU has no AVX2 (or this is no x86-64 build).
const Variant* Avx2Variant();
// The fastest that this CPU has.
const Variant& BestVariant();

namespace reference {
void Compact(const MaskPlan& plan, TileRange tiles, const float* in,
             float* out);
uint64_t CompactAndCount(const MaskPlan& plan, TileRange tiles, const float* in,
                         float* out);
uint64_t CountOutside(const MaskPlan& plan, TileRange tiles, const float* in);
void Expand(const MaskPlan& plan, TileRange tiles, const float* in, float* out);
void ExpandDivide(const MaskPlan& plan, TileRange tiles, const float* in,
                  float divisor, float* out);
void Divide(const float* in, size_t elements, float divisor, float* out);
void Sum(const float* const* in, size_t buffers, size_t elements, float* out);
void ToBf16(const float* in, size_t elements, uint16_t* out);
void FromBf16(const uint16_t* in, size_t elements, float* out);
LevelsNoise EncodeLevels(Levels levels, const LevelsDither& dither,
                         const float* in, size_t elements, uint8_t* out);
bool DecodeLevels(Levels levels, const LevelsDither& dither, const uint8_t* in,
                  size_t elements, float* out);
}  // namespace reference

#if defined(__x86_64__)
namespace avx2 {
void Compact(const MaskPlan& plan, TileRange tiles, const float* in,
             float* out);
uint64_t CompactAndCount(const MaskPlan& plan, TileRange tiles, const float* in,
                         float* out);
uint64_t CountOutside(const MaskPlan& plan, TileRange tiles, const float* in);
void Expand(const MaskPlan& plan, TileRange tiles, const float* in, float* out);
void ExpandDivide(const MaskPlan& plan, TileRange tiles, const float* in,
                  float divisor, float* out);
void Divide(const float* in, size_t elements, float divisor, float* out);
void Sum(const float* const* in, size_t buffers, size_t elements, float* out);
void ToBf16(const float* in, size_t elements, uint16_t* out);
void FromBf16(const uint16_t* in, size_t elements, float* out);
LevelsNoise EncodeLevels(Levels levels, const LevelsDither& dither,
                         const float* in, size_t elements, uint8_t* out);
bool DecodeLevels(Levels levels, const LevelsDither& dither, const uint8_t* in,
                  size_t elements, float* out);
}  // namespace avx2
#endif

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_VARIANTS_H_
