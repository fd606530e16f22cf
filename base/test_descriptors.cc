#include "base/test_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/check.h"

#ifdef __SANITIZE_ADDRESS__
// UBSan looks whether an object's memory can be read by writing it into a pipe.
// Without descriptors it has none and would call good objects bad: it alone
// gets two beyond the limit, which it closes at once.
extern "C" int pipe(int descriptors[2]) {
  rlimit before = {};
  PT_CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit all = {before.rlim_max, before.rlim_max};
  PT_CHECK(setrlimit(RLIMIT_NOFILE, &all) == 0);
  const int result = pipe2(descriptors, 0);
  PT_CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  return result;
}
#endif

namespace pactrain::base {

void AllowDescriptors(rlim_t wanted) {
  rlimit limit = {};
  PT_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  PT_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

OneDescriptorLeft::OneDescriptorLeft() {
  PT_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
  const int lowest = dup(STDIN_FILENO);
  PT_CHECK(close(lowest) == 0);
  const rlimit one = {static_cast<rlim_t>(lowest) + 1, before_.rlim_max};
  PT_CHECK(setrlimit(RLIMIT_NOFILE, &one) == 0);
}

OneDescriptorLeft::~OneDescriptorLeft() {
  PT_CHECK(setrlimit(RLIMIT_NOFILE, &before_) == 0);
}

}  // namespace pactrain::base
