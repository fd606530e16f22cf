// The stand-in for a GPU's lanes notices what a GPU would suffer from.
#include "kernels/cuda/on_cpu.h"

#include <stdexcept>
#include <vector>

#include "gtest/gtest.h"

namespace pactrain::on_cpu {
namespace {

constexpr uint32_t kAll = 0xffffffff;

class OnCpuTest : public ::testing::TestWithParam<Order> {};

INSTANTIATE_TEST_SUITE_P(Orders, OnCpuTest,
                         ::testing::Values(Order::kForward, Order::kBackward),
                         [](const auto& info) {
                           return info.param == Order::kForward ? "Forward"
                                                                : "Backward";
                         });

TEST_P(OnCpuTest, ShufflesGiveTheOtherLanesValueOfTheSameCall) {
  std::vector<uint32_t> got(128), down(128);
  RunGrid({2, 64, GetParam()}, [&] {
    const uint32_t at = blockIdx.x * 64 + threadIdx.x;
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t round = 0; round < 3; ++round) {
      got[at] = __shfl_sync(kAll, 1000 * round + at, (lane + 1) % 32);
    }
    down[at] = __shfl_down_sync(kAll, at, 8);
  });
  for (uint32_t at = 0; at < got.size(); ++at) {
    EXPECT_EQ(got[at], 2000 + at / 32 * 32 + (at + 1) % 32);
    EXPECT_EQ(down[at], at % 32 + 8 < 32 ? at + 8 : at);
  }
}

TEST_P(OnCpuTest, NobodyPassesABarrierBeforeAllAreThere) {
  std::vector<uint32_t> seen(64);
  uint32_t came = 0;
  RunGrid({1, 64, GetParam()}, [&] {
    ++came;
    __syncthreads();
    seen[threadIdx.x] = came;
  });
  EXPECT_EQ(seen, std::vector<uint32_t>(64, 64));
}

TEST_P(OnCpuTest, ALaneThatDoesNotComeIsAnError) {
  EXPECT_THROW(RunGrid({1, 64, GetParam()},
                       [] {
                         if (threadIdx.x != 40) __shfl_sync(kAll, 1u, 0);
                       }),
               std::logic_error);
  EXPECT_THROW(RunGrid({1, 64, GetParam()},
                       [] {
                         if (threadIdx.x >= 32) __syncthreads();
                       }),
               std::logic_error);
}

TEST(OnCpu, NansOfItsArithmeticAreTheDevices) {
  EXPECT_EQ(__float_as_uint(__fdiv_rn(__uint_as_float(0x7fc12345), 3.0f)),
            0x7fffffffu);
  EXPECT_EQ(__fdiv_rn(1.0f, 4.0f), 0.25f);
}

}  // namespace
}  // namespace pactrain::on_cpu
