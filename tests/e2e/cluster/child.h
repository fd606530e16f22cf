// A child process of a test: started with its output in a pipe, killed at the
// latest with its object.
//
// Thread-compatible. Every wait is bounded.
#ifndef PACTRAIN_TESTS_E2E_CLUSTER_CHILD_H_
#define PACTRAIN_TESTS_E2E_CLUSTER_CHILD_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace pactrain::e2e {

inline constexpr absl::Duration kPatience = absl::Seconds(60);

class Child {
 public:
  explicit Child(const std::vector<std::string>& argv);
  Child(Child&& other) noexcept;
  ~Child();

  // The next line of standard output that contains `text`; lines before it are
  // skipped. Nothing at its end or when patience ends.
  std::optional<std::string> WaitForLine(const std::string& text,
                                         absl::Duration patience = kPatience);
  // The exit code, or 128 + the signal; nothing when patience ends.
  std::optional<int> Wait(absl::Duration patience = kPatience);
  void Signal(int signal);
  void Kill();  // SIGKILL, and gone when it returns.

  pid_t pid() const { return pid_; }
  // All lines that were read so far.
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  // False at the end of the output or when `end` has come.
  bool ReadSome(absl::Duration end);

  pid_t pid_ = -1;
  int output_ = -1;
  std::string partial_;
  std::vector<std::string> lines_;
  size_t next_line_ = 0;
  std::optional<int> exit_code_;
};

}  // namespace pactrain::e2e

#endif  // PACTRAIN_TESTS_E2E_CLUSTER_CHILD_H_
