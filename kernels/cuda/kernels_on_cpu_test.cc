// The kernels' source on the CPU, beside the reference, bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/mask_image.h"
#include "kernels/cuda/on_cpu.h"
#include "kernels/mask_plan.h"
#include "kernels/variants.h"
// The macros of on_cpu.h are for this one.
#include "kernels/cuda/kernels.cu"

namespace pactrain::cuda {
namespace {

using kernels::AllTiles;
using kernels::MaskPlan;
namespace reference = kernels::reference;
using on_cpu::Order;

// What is easily lost: -0, subnormals, Inf, NaNs, ties of bf16.
constexpr uint32_t kSpecial[] = {
    0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800001, 0x7f800000,
    0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001, 0xff812345, 0x7f7fffff,
    0x3f808000, 0x3f818000, 0x7f800100, 0x0000ffff, 0x00010000, 0x80010000};

// Numbers mixed with those.
std::vector<uint32_t> RandomBits(std::mt19937& random, size_t elements) {
  std::vector<uint32_t> bits(elements);
  for (uint32_t& b : bits) {
    const uint32_t r = random();
    b = r % 4 == 0 ? kSpecial[r / 4 % std::size(kSpecial)] : random();
  }
  return bits;
}

std::vector<uint8_t> RandomMask(std::mt19937& random, size_t elements,
                                double keep) {
  std::vector<uint8_t> bitmap((elements + 7) / 8, 0);
  std::bernoulli_distribution kept(keep);
  for (size_t i = 0; i < elements; ++i) {
    if (kept(random)) bitmap[i / 8] |= 1 << i % 8;
  }
  // Bits after the end must not matter.
  if (elements % 8 != 0) bitmap.back() |= 0xff << elements % 8;
  return bitmap;
}

// Memory of which the kernel gets what begins at any element, with guards.
template <typename Bits>
class Buffer {
 public:
  explicit Buffer(size_t elements, size_t offset)
      : storage_(elements + offset + 32, kGuard), offset_(offset) {}
  Buffer(const std::vector<Bits>& bits, size_t offset)
      : Buffer(bits.size(), offset) {
    std::copy(bits.begin(), bits.end(), storage_.begin() + offset);
  }
  Bits* data() { return storage_.data() + offset_; }
  const std::vector<Bits>& storage() const { return storage_; }

 private:
  static constexpr Bits kGuard = static_cast<Bits>(0xdeadbeef);
  std::vector<Bits> storage_;
  size_t offset_;
};

std::vector<uint16_t> HighHalves(const std::vector<uint32_t>& bits) {
  std::vector<uint16_t> high(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    high[i] = static_cast<uint16_t>(bits[i] >> 16);
  }
  return high;
}

std::vector<float> Wide(const std::vector<uint16_t>& bits) {
  std::vector<float> wide(bits.size());
  reference::FromBf16(bits.data(), bits.size(), wide.data());
  return wide;
}

std::vector<float> Floats(const std::vector<uint32_t>& bits) {
  std::vector<float> floats(bits.size());
  if (!bits.empty()) std::memcpy(floats.data(), bits.data(), 4 * bits.size());
  return floats;
}

// The sums that shapes.h promises, in their order: lanes, halves, tiles.
std::vector<BlockTotals> WantedTotals(const MaskPlan& plan,
                                      const std::vector<float>& in,
                                      bool count_outside) {
  const auto elements = static_cast<uint32_t>(in.size());
  std::vector<BlockTotals> totals(BlocksOf(elements), BlockTotals{0, 0});
  for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
    double lanes[kLanes] = {};
    BlockTotals& block = totals[tile / kBlockTiles];
    for (uint32_t i = tile * kTileElements;
         i < std::min(elements, (tile + 1) * kTileElements); ++i) {
      if (plan.words()[i / 64] >> (i % 64) & 1) {
        lanes[i % kLanes] += double{in[i]} * double{in[i]};
      } else if (count_outside && in[i] != 0) {  // A NaN is not 0, -0 is.
        ++block.outside;
      }
    }
    for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
      for (uint32_t lane = 0; lane < half; ++lane) {
        lanes[lane] += lanes[lane + half];
      }
    }
    block.squares += lanes[0];
  }
  for (BlockTotals& block : totals) {
    if (std::isnan(block.squares)) {
      block.squares = std::bit_cast<double>(uint64_t{0x7ff8} << 48);
    }
  }
  return totals;
}

struct Case {
  size_t elements;
  double keep;
  bool whole = false;  // No mask is given.
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (size_t elements : {0, 1, 31, 33, 1023, 1024, 1025, 9001}) {
    for (double keep : {0.0, 0.03, 0.5, 0.97, 1.0}) {
      cases.push_back({elements, keep});
    }
    cases.push_back({elements, 1.0, true});
  }
  return cases;
}

// Memory begins each of so many elements after what a vector load would want.
constexpr size_t kStarts = 4;

class KernelsOnCpuTest : public ::testing::TestWithParam<Case> {
 protected:
  KernelsOnCpuTest()
      : bitmap_(RandomMask(random_, GetParam().elements, GetParam().keep)),
        plan_(bitmap_.data(), GetParam().elements),
        image_(MaskImage(plan_)) {}

  const uint32_t* words() const {
    return GetParam().whole ? nullptr : image_.data();
  }
  const uint32_t* offsets() const {
    return GetParam().whole ? nullptr
                            : image_.data() + MaskOffsetsAt(elements()) / 4;
  }
  uint32_t elements() const {
    return static_cast<uint32_t>(GetParam().elements);
  }
  on_cpu::Grid GridOf(Order order) const {
    return {BlocksOf(elements()), kBlockThreads, order};
  }

  std::mt19937 random_{7};
  std::vector<uint8_t> bitmap_;
  MaskPlan plan_;
  std::vector<uint32_t> image_;
};

INSTANTIATE_TEST_SUITE_P(Edges, KernelsOnCpuTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return std::to_string(info.param.elements) + "_" +
                                  (info.param.whole
                                       ? "whole"
                                       : std::to_string(static_cast<int>(
                                             100 * info.param.keep)));
                         });

void Launch(const on_cpu::Grid& grid, const uint32_t* in, const uint32_t* words,
            const uint32_t* offsets, uint32_t elements, bool count,
            uint32_t* out, BlockTotals* totals) {
  on_cpu::RunGrid(grid, [&] {
    pactrain_compact_fp32(in, words, offsets, elements, count, out, totals);
  });
}
void Launch(const on_cpu::Grid& grid, const uint16_t* in, const uint32_t* words,
            const uint32_t* offsets, uint32_t elements, bool count,
            uint32_t* out, BlockTotals* totals) {
  on_cpu::RunGrid(grid, [&] {
    pactrain_compact_bf16(in, words, offsets, elements, count, out, totals);
  });
}
void Launch(const on_cpu::Grid& grid, const uint32_t* in, const uint32_t* words,
            const uint32_t* offsets, uint32_t elements, float divisor,
            uint32_t* out) {
  on_cpu::RunGrid(grid, [&] {
    pactrain_expand_divide_fp32(in, words, offsets, elements, divisor, out);
  });
}
void Launch(const on_cpu::Grid& grid, const uint32_t* in, const uint32_t* words,
            const uint32_t* offsets, uint32_t elements, float divisor,
            uint16_t* out) {
  on_cpu::RunGrid(grid, [&] {
    pactrain_expand_divide_bf16(in, words, offsets, elements, divisor, out);
  });
}

template <typename Bits>
void CheckCompact(const on_cpu::Grid& grid, const MaskPlan& plan,
                  const uint32_t* words, const uint32_t* offsets,
                  const std::vector<Bits>& bits, const std::vector<float>& wide,
                  bool count, size_t in_offset, size_t out_offset) {
  Buffer<Bits> in(bits, in_offset);
  Buffer<uint32_t> wanted(plan.kept(), out_offset);
  Buffer<uint32_t> out(plan.kept(), out_offset);
  const uint64_t outside =
      reference::CompactAndCount(plan, AllTiles(plan), wide.data(),
                                 reinterpret_cast<float*>(wanted.data()));
  std::vector<BlockTotals> totals(grid.blocks + 1, BlockTotals{-1, 77});
  Launch(grid, in.data(), words, offsets, static_cast<uint32_t>(bits.size()),
         count, out.data(), totals.data());
  EXPECT_EQ(out.storage(), wanted.storage());
  const std::vector<BlockTotals> expected = WantedTotals(plan, wide, count);
  uint64_t counted = 0;
  for (size_t b = 0; b < grid.blocks; ++b) {
    EXPECT_EQ(std::bit_cast<uint64_t>(totals[b].squares),
              std::bit_cast<uint64_t>(expected[b].squares));
    EXPECT_EQ(totals[b].outside, expected[b].outside);
    counted += totals[b].outside;
  }
  EXPECT_EQ(counted, count ? outside : 0);
  EXPECT_EQ(totals[grid.blocks].outside, 77u);
}

TEST_P(KernelsOnCpuTest, CompactEqualsTheReference) {
  const std::vector<uint32_t> bits = RandomBits(random_, elements());
  const std::vector<uint16_t> narrow = HighHalves(bits);
  size_t start = 0;
  for (Order order : {Order::kForward, Order::kBackward}) {
    for (bool count : {true, false}) {
      const size_t other = kStarts - 1 - start;
      CheckCompact(GridOf(order), plan_, words(), offsets(), bits, Floats(bits),
                   count, start, other);
      CheckCompact(GridOf(order), plan_, words(), offsets(), narrow,
                   Wide(narrow), count, start, other);
      start = (start + 1) % kStarts;
    }
  }
}

// Squares of NaNs are NaN; those of plain numbers are sums to look at.
TEST_P(KernelsOnCpuTest, SquaresOfPlainNumbersAreAddedInTheStatedOrder) {
  std::vector<uint32_t> bits(elements());
  std::normal_distribution<float> normal(0, 1e-3f);
  for (uint32_t& b : bits) b = std::bit_cast<uint32_t>(normal(random_));
  const std::vector<uint16_t> narrow = HighHalves(bits);
  for (Order order : {Order::kForward, Order::kBackward}) {
    CheckCompact(GridOf(order), plan_, words(), offsets(), bits, Floats(bits),
                 true, 1, 1);
    CheckCompact(GridOf(order), plan_, words(), offsets(), narrow, Wide(narrow),
                 true, 1, 1);
  }
}

TEST_P(KernelsOnCpuTest, ExpandDivideEqualsTheReference) {
  const std::vector<uint32_t> packed = RandomBits(random_, plan_.kept());
  const std::vector<float> values = Floats(packed);
  size_t start = 0;
  for (uint32_t divisor : {1, 3, 6, 1024}) {
    start = (start + 1) % kStarts;
    Buffer<float> wanted32(elements(), start);
    Buffer<uint16_t> wanted16(elements(), start);
    reference::ExpandDivide(plan_, AllTiles(plan_), values.data(),
                            static_cast<float>(divisor), wanted32.data());
    reference::ToBf16(wanted32.data(), elements(), wanted16.data());
    Buffer<uint32_t> in(packed, kStarts - 1 - start), out32(elements(), start);
    Buffer<uint16_t> out16(elements(), start);
    const on_cpu::Grid grid =
        GridOf(divisor % 2 == 0 ? Order::kForward : Order::kBackward);
    Launch(grid, in.data(), words(), offsets(), elements(),
           static_cast<float>(divisor), out32.data());
    Launch(grid, in.data(), words(), offsets(), elements(),
           static_cast<float>(divisor), out16.data());
    EXPECT_EQ(std::memcmp(out32.data(), wanted32.data(), 4 * elements()), 0);
    EXPECT_EQ(out32.storage(),
              Buffer<uint32_t>({out32.data(), out32.data() + elements()}, start)
                  .storage());
    EXPECT_EQ(out16.storage(), wanted16.storage());
  }
}

// All of them kept, and all outside the mask.
TEST(KernelsOnCpu, EveryOddValueIsThatOfTheReference) {
  const std::vector<uint32_t> bits(std::begin(kSpecial), std::end(kSpecial));
  const std::vector<uint16_t> narrow = HighHalves(bits);
  const auto elements = static_cast<uint32_t>(bits.size());
  const on_cpu::Grid grid = {1, kBlockThreads};
  for (uint8_t byte : {0x00, 0xff}) {
    const std::vector<uint8_t> bitmap((elements + 7) / 8, byte);
    const MaskPlan plan(bitmap.data(), elements);
    const std::vector<uint32_t> image = MaskImage(plan);
    const uint32_t* offsets = image.data() + MaskOffsetsAt(elements) / 4;
    CheckCompact(grid, plan, image.data(), offsets, bits, Floats(bits), true, 1,
                 1);
    CheckCompact(grid, plan, image.data(), offsets, narrow, Wide(narrow), true,
                 1, 1);
    std::vector<float> wanted(elements);
    std::vector<uint16_t> wanted16(elements), out16(elements);
    std::vector<uint32_t> out(elements);
    reference::ExpandDivide(plan, AllTiles(plan), Floats(bits).data(), 3.0f,
                            wanted.data());
    reference::ToBf16(wanted.data(), elements, wanted16.data());
    Launch(grid, bits.data(), image.data(), offsets, elements, 3.0f,
           out.data());
    Launch(grid, bits.data(), image.data(), offsets, elements, 3.0f,
           out16.data());
    EXPECT_EQ(std::memcmp(out.data(), wanted.data(), 4 * elements), 0);
    EXPECT_EQ(out16, wanted16);
  }
}

// All halves of all NaNs, and what a division makes of the smallest numbers.
TEST(KernelsOnCpu, EveryBf16IsDividedAsOnTheCpu) {
  std::vector<uint32_t> packed;
  for (uint32_t high = 0; high <= 0xffff; ++high) {
    packed.push_back(high << 16 | (high * 40503 & 0xffff));
  }
  const auto elements = static_cast<uint32_t>(packed.size());
  const std::vector<float> values = Floats(packed);
  std::vector<float> wide(elements);
  std::vector<uint16_t> wanted(elements), out(elements);
  reference::Divide(values.data(), elements, 3.0f, wide.data());
  reference::ToBf16(wide.data(), elements, wanted.data());
  Launch({BlocksOf(elements), kBlockThreads}, packed.data(), nullptr, nullptr,
         elements, 3.0f, out.data());
  EXPECT_EQ(out, wanted);
}

}  // namespace
}  // namespace pactrain::cuda
