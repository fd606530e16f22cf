// An owned file descriptor.
//
// Thread-compatible. Closes on destruction.
#ifndef PACTRAIN_BASE_FD_H_
#define PACTRAIN_BASE_FD_H_

#include <unistd.h>

#include <utility>

namespace pactrain::base {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor away.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_FD_H_
