// The one clock of the shells: monotonic, in the unit that cores and timers
// share. Cores never read it; they are given `now`.
#ifndef PACTRAIN_BASE_CLOCK_H_
#define PACTRAIN_BASE_CLOCK_H_

#include <chrono>

#include "absl/time/time.h"

namespace pactrain::base {

// Time since an arbitrary start; never goes back.
inline absl::Duration MonotonicNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_CLOCK_H_
