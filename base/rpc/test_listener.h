// A socket that listens on a free port of the loopback, for tests.
#ifndef PACTRAIN_BASE_RPC_TEST_LISTENER_H_
#define PACTRAIN_BASE_RPC_TEST_LISTENER_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"

namespace pactrain::base {

class TestListener {
 public:
  TestListener() {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address_;
    PT_CHECK(bind(fd_, generic(), size) == 0);
    PT_CHECK(listen(fd_, 1) == 0);
    PT_CHECK(getsockname(fd_, generic(), &size) == 0);
  }
  ~TestListener() { close(fd_); }
  TestListener(const TestListener&) = delete;
  TestListener& operator=(const TestListener&) = delete;

  int port() const { return ntohs(address_.sin_port); }
  // The other end of Accept(), which is called after it.
  int Connect() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    PT_CHECK(connect(fd, generic(), sizeof address_) == 0);
    return fd;
  }
  int Accept() {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    PT_CHECK(fd >= 0);
    return fd;
  }

 private:
  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&address_); }

  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address_ = {};
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_TEST_LISTENER_H_
