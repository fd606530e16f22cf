// File descriptors running out, or being many, for tests.
#ifndef PACTRAIN_BASE_TEST_DESCRIPTORS_H_
#define PACTRAIN_BASE_TEST_DESCRIPTORS_H_

#include <sys/resource.h>

namespace pactrain::base {

// REQUIRES: the system lets this process open so many.
void AllowDescriptors(rlim_t wanted);

// As long as it lives, the process may open one more descriptor: the lowest
// that is free. REQUIRES: one at a time.
class OneDescriptorLeft {
 public:
  OneDescriptorLeft();
  ~OneDescriptorLeft();
  OneDescriptorLeft(const OneDescriptorLeft&) = delete;
  OneDescriptorLeft& operator=(const OneDescriptorLeft&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TEST_DESCRIPTORS_H_
