#include "agent/exchange/noise.h"

namespace pactrain::agent {

double SumOfSquares(const float* values, size_t elements) {
  // Several chains of additions: one would wait for itself.
  constexpr size_t kChains = 8;
  double chains[kChains] = {};
  size_t i = 0;
  for (; i + kChains <= elements; i += kChains) {
    for (size_t c = 0; c < kChains; ++c) {
      const double value = values[i + c];
      chains[c] += value * value;
    }
  }
  double sum = 0;
  for (; i < elements; ++i) sum += double{values[i]} * values[i];
  for (double chain : chains) sum += chain;
  return sum;
}

}  // namespace pactrain::agent
