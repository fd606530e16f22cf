#include "tests/e2e/cluster/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace pactrain::e2e {
namespace {

// False when it did not happen in time.
bool WaitReadable(int fd, absl::Duration end) {
  const int64_t left = absl::ToInt64Milliseconds(end - base::MonotonicNow());
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(std::max<int64_t>(left, 0))) > 0;
}

}  // namespace

Child::Child(const std::vector<std::string>& argv) {
  int ends[2];
  PT_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  std::vector<char*> arguments;
  for (const std::string& argument : argv) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  pid_ = fork();
  PT_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(ends[1], STDOUT_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  output_ = ends[0];
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      partial_(std::move(other.partial_)),
      lines_(std::move(other.lines_)),
      next_line_(other.next_line_),
      exit_code_(other.exit_code_) {}

Child::~Child() {
  if (pid_ > 0) Kill();
  if (output_ >= 0) close(output_);
}

bool Child::ReadSome(absl::Duration end) {
  if (!WaitReadable(output_, end)) return false;
  char bytes[4096];
  const ssize_t count = read(output_, bytes, sizeof bytes);
  if (count <= 0) return false;
  partial_.append(bytes, static_cast<size_t>(count));
  for (size_t newline; (newline = partial_.find('\n')) != std::string::npos;) {
    lines_.push_back(partial_.substr(0, newline));
    partial_.erase(0, newline + 1);
  }
  return true;
}

std::optional<std::string> Child::WaitForLine(const std::string& text,
                                              absl::Duration patience) {
  const absl::Duration end = base::MonotonicNow() + patience;
  do {
    while (next_line_ < lines_.size()) {
      const std::string& line = lines_[next_line_++];
      if (line.find(text) != std::string::npos) return line;
    }
  } while (ReadSome(end));
  return std::nullopt;
}

std::optional<int> Child::Wait(absl::Duration patience) {
  const absl::Duration end = base::MonotonicNow() + patience;
  while (ReadSome(end)) {
  }
  if (exit_code_.has_value()) return exit_code_;
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  PT_CHECK(process >= 0);
  const bool ended = WaitReadable(process, end);
  close(process);
  if (!ended) return std::nullopt;
  int status = 0;
  PT_CHECK(waitpid(pid_, &status, 0) == pid_);
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

void Child::Signal(int signal) {
  if (!exit_code_.has_value()) kill(pid_, signal);
}

void Child::Kill() {
  if (exit_code_.has_value()) return;
  Signal(SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  exit_code_ = 128 + SIGKILL;
}

}  // namespace pactrain::e2e
