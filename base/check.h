// Assertions for our own bugs; they stay on in release builds. What the world
// can cause (bad input, a lost peer) is an absl::Status instead.
#ifndef PACTRAIN_BASE_CHECK_H_
#define PACTRAIN_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

namespace pactrain::base {

[[noreturn]] inline void CheckFailed(const char* file, int line,
                                     const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace pactrain::base

#define PT_CHECK(condition)                                          \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      ::pactrain::base::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#endif  // PACTRAIN_BASE_CHECK_H_
