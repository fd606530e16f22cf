#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/variants.h"

namespace pactrain::kernels {
namespace {

// More than the first cache holds: there the two hardly differ on Intel.
constexpr size_t kElements = 64 * MaskPlan::kTileElements;
constexpr int kRounds = 4;

// About half of the bits, without a pattern that a branch predictor would know.
std::vector<uint8_t> HalfMask() {
  std::vector<uint8_t> bitmap(kElements / 8);
  uint32_t state = 1;
  for (uint8_t& byte : bitmap) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return bitmap;
}

}  // namespace

const Variant& FasterCompact(const Variant& a, const Variant& b,
                             int64_t (*now_ns)()) {
  const MaskPlan plan(HalfMask().data(), kElements);
  const std::vector<float> in(plan.elements(), 1.0f);
  std::vector<float> out(plan.kept());
  const Variant* variants[] = {&a, &b};
  int64_t least[] = {std::numeric_limits<int64_t>::max(),
                     std::numeric_limits<int64_t>::max()};
  for (int round = 0; round < kRounds; ++round) {
    for (size_t v = 0; v < 2; ++v) {
      const int64_t start = now_ns();
      variants[v]->compact(plan, AllTiles(plan), in.data(), out.data());
      least[v] = std::min(least[v], now_ns() - start);
    }
  }
  return least[1] < least[0] ? b : a;
}

}  // namespace pactrain::kernels
