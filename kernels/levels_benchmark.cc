// Speed of the n-level codec on one core, in GB/s of fp32, by frames of 16,384
// Gaussian elements: every variant that this CPU has. Run by hand.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels/levels.h"
#include "kernels/variants.h"

namespace pactrain::kernels {
namespace {

constexpr size_t kElements = 16384;
constexpr int kCalls = 200;
constexpr int kRounds = 7;

// The best of the rounds: the machine may have other work.
template <class Call>
double GigabytesPerSecond(Call call) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call(i);
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return 4e-9 * kElements * kCalls / best;
}

void Measure(const Variant& variant, const std::vector<float>& in) {
  std::vector<float> out(kElements);
  for (Levels levels :
       {Levels::k3, Levels::k5, Levels::k7, Levels::k15, Levels::k31}) {
    std::vector<uint8_t> bytes(LevelsBytes(levels, kElements));
    LevelsNoise noise;
    const double encode = GigabytesPerSecond([&](int i) {
      noise = variant.encode_levels(levels, {static_cast<uint64_t>(i), 0},
                                    in.data(), kElements, bytes.data());
    });
    const double decode = GigabytesPerSecond([&](int i) {
      variant.decode_levels(levels, {static_cast<uint64_t>(i), 0}, bytes.data(),
                            kElements, out.data());
    });
    std::printf(
        "%-9s %2d levels: encode %5.2f GB/s, decode %5.2f GB/s, %.3f bits per "
        "element, NMSE %.5f (clip %.5f)\n",
        variant.name, static_cast<int>(levels), encode, decode,
        8.0 * static_cast<double>(bytes.size()) / kElements,
        noise.error_squared / noise.input_squared,
        noise.clip_squared / noise.input_squared);
  }
}

}  // namespace
}  // namespace pactrain::kernels

int main() {
  using namespace pactrain::kernels;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> in(kElements);
  for (float& x : in) x = normal(random);
  Measure(ReferenceVariant(), in);
  if (Avx2Variant() != nullptr) Measure(*Avx2Variant(), in);
}
