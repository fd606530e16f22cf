// Numbers from a seed, and hashes: the only source of chance in the simulator.
#ifndef PACTRAIN_TESTS_SIM_RANDOM_H_
#define PACTRAIN_TESTS_SIM_RANDOM_H_

#include <cstdint>
#include <initializer_list>

#include "absl/time/time.h"

namespace pactrain::sim {

inline uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline uint64_t Hash(std::initializer_list<uint64_t> values) {
  uint64_t hash = 0x243f6a8885a308d3;
  for (uint64_t value : values) hash = Mix(hash ^ value);
  return hash;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed)) {}
  uint64_t Next() { return Mix(state_++); }
  uint64_t Below(uint64_t limit) { return Next() % limit; }
  bool Chance(int permille) {
    return Below(1000) < static_cast<uint64_t>(permille);
  }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const auto span =
        static_cast<uint64_t>(absl::ToInt64Microseconds(high - low));
    return low + absl::Microseconds(static_cast<int64_t>(Below(span + 1)));
  }

 private:
  uint64_t state_;
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_RANDOM_H_
