// File descriptors running out, or being many, for tests.
#ifndef PACTRAIN_BASE_TEST_DESCRIPTORS_H_
#define PACTRAIN_BASE_TEST_DESCRIPTORS_H_

#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"

namespace pactrain::base {

// REQUIRES: the system lets this process open so many.
inline void AllowDescriptors(rlim_t wanted) {
  rlimit limit = {};
  PT_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  PT_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

// As long as it lives, the process may open one more descriptor: the lowest
// that is free. REQUIRES: one at a time.
class OneDescriptorLeft {
 public:
  OneDescriptorLeft() {
    PT_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int lowest = dup(STDIN_FILENO);
    PT_CHECK(close(lowest) == 0);
    const rlimit one = {static_cast<rlim_t>(lowest) + 1, before_.rlim_max};
    PT_CHECK(setrlimit(RLIMIT_NOFILE, &one) == 0);
  }
  ~OneDescriptorLeft() { PT_CHECK(setrlimit(RLIMIT_NOFILE, &before_) == 0); }
  OneDescriptorLeft(const OneDescriptorLeft&) = delete;
  OneDescriptorLeft& operator=(const OneDescriptorLeft&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TEST_DESCRIPTORS_H_
