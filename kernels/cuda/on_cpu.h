// Runs CUDA kernels on the CPU, from their unchanged source: for tests.
//
//   #include "kernels/cuda/on_cpu.h"
//   #include "kernels/cuda/kernels.cu"
//   on_cpu::RunGrid({blocks, threads, order}, [&] { pactrain_compact_fp32(...);
//   });
//
// Each lane is a fiber; a warp's exchange and a block's barrier wait for those
// that they are for. A lane that does not come is an error (std::logic_error),
// not a hang. The order in which lanes run is the caller's: what holds in both
// does not rest on one. Where a GPU gives NaNs of its own, so does this.
//
// Blocks run one after the other. Thread-compatible: one RunGrid() at a time in
// a process. Not for sanitizers, which do not follow fibers.
#ifndef PACTRAIN_KERNELS_CUDA_ON_CPU_H_
#define PACTRAIN_KERNELS_CUDA_ON_CPU_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

namespace pactrain::on_cpu {

struct Index {
  uint32_t x = 0;
};

enum class Order { kForward, kBackward };

struct Grid {
  uint32_t blocks = 0;
  uint32_t threads = 0;  // In each; a multiple of 32.
  Order order = Order::kForward;
};

// Throws std::logic_error: a lane is missing where all must come.
void RunGrid(const Grid& grid, const std::function<void()>& kernel);

Index ThreadIndex();
Index BlockIndex();

// All threads of the block come here before one goes on.
void SyncThreads();
// The same of a warp; gives what lane `from` has brought. Of lanes beyond the
// warp, as of a shuffle's, its own.
uint64_t Exchange(uint64_t value, uint32_t from);
uint32_t LaneIndex();

template <typename Value>
Value Shuffle(uint32_t mask, Value value, uint32_t from) {
  static_assert(sizeof(Value) <= sizeof(uint64_t));
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(value));
  // Other masks would need other barriers; no kernel has one.
  word = Exchange(word, mask == 0xffffffff ? from : ~uint32_t{0});
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// The NaN that a GPU's fp32 arithmetic gives, whatever goes in (PTX ISA).
inline float DeviceResult(float result) {
  return std::isnan(result) ? std::bit_cast<float>(0x7fffffffu) : result;
}
// Of fp64 it promises nothing: one that nobody takes for the right one.
inline double DeviceResult(double result) {
  return std::isnan(result) ? std::bit_cast<double>(0xfff8dead00000000u)
                            : result;
}

}  // namespace pactrain::on_cpu

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static
#define threadIdx (::pactrain::on_cpu::ThreadIndex())
#define blockIdx (::pactrain::on_cpu::BlockIndex())

inline void __syncthreads() { ::pactrain::on_cpu::SyncThreads(); }

template <typename Value>
Value __shfl_sync(uint32_t mask, Value value, uint32_t from) {
  return ::pactrain::on_cpu::Shuffle(mask, value, from);
}

template <typename Value>
Value __shfl_down_sync(uint32_t mask, Value value, uint32_t step) {
  return ::pactrain::on_cpu::Shuffle(mask, value,
                                     ::pactrain::on_cpu::LaneIndex() + step);
}

inline int __popc(uint32_t word) { return std::popcount(word); }
inline float __uint_as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline uint32_t __float_as_uint(float value) {
  return std::bit_cast<uint32_t>(value);
}
inline double __longlong_as_double(long long bits) {
  return std::bit_cast<double>(bits);
}
inline float __fdiv_rn(float a, float b) {
  return ::pactrain::on_cpu::DeviceResult(a / b);
}
inline double __dmul_rn(double a, double b) {
  return ::pactrain::on_cpu::DeviceResult(a * b);
}
inline double __dadd_rn(double a, double b) {
  return ::pactrain::on_cpu::DeviceResult(a + b);
}

#endif  // PACTRAIN_KERNELS_CUDA_ON_CPU_H_
