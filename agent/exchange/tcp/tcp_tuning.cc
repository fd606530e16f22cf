#include "agent/exchange/tcp/tcp_tuning.h"

// The kernel's own header: that of Debian 12's libc does not know the least
// round trip.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72  // Linux 5.15.
#endif

namespace pactrain::agent {
namespace {

// Unsent bytes that the kernel takes over: what is there can no longer be
// overtaken by control.
constexpr int kUnsentInKernelBytes = 64 << 10;
constexpr char kFarCongestionControl[4] = "bbr";

template <typename T>
void Set(int fd, int level, int option, const T& value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

// False: the kernel allows less.
bool LimitSendBuffer(int fd, size_t bytes) {
  // It doubles what it is told and counts its own structures, too.
  Set(fd, SOL_SOCKET, SO_SNDBUF,
      static_cast<int>(std::min<size_t>(bytes / 2, 1 << 30)));
  int allowed = 0;
  socklen_t size = sizeof allowed;
  return getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &allowed, &size) == 0 &&
         static_cast<size_t>(allowed) >= bytes;
}

}  // namespace

size_t InFlightBytes(double bytes_per_second, absl::Duration least_rtt) {
  const double seconds = absl::ToDoubleSeconds(2 * least_rtt + kTurn);
  return std::max(static_cast<size_t>(bytes_per_second * seconds),
                  kLeastInFlightBytes);
}

void SetTcpOptions(int fd, absl::Duration suspect) {
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<unsigned>(absl::ToInt64Milliseconds(suspect)));
  Set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentInKernelBytes);
  TuneTcp(fd, 0);
}

void TuneTcp(int fd, double bytes_per_second) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  const absl::Duration rtt = absl::Microseconds(info.tcpi_min_rtt);
  const bool far = rtt >= kFarRtt;
  if (far) Set(fd, IPPROTO_TCP, TCP_CONGESTION, kFarCongestionControl);
  // What cannot be limited to so much is not to be held to less.
  if (far || !LimitSendBuffer(fd, InFlightBytes(bytes_per_second, rtt))) {
    Set(fd, SOL_SOCKET, SO_BUF_LOCK, 0);
  }
}

}  // namespace pactrain::agent
