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
constexpr char kFarCongestionControl[] = "bbr";

template <typename T>
void Set(int fd, int level, int option, const T& value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

std::string CongestionControlOf(int fd) {
  char name[16] = {};
  socklen_t size = sizeof name - 1;
  getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  return name;
}

void UseCongestionControl(int fd, const std::string& name) {
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
             static_cast<socklen_t>(name.size()));
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

TcpTuning::TcpTuning(int fd, absl::Duration suspect) {
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<unsigned>(absl::ToInt64Milliseconds(suspect)));
  Set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentInKernelBytes);
  Update(fd, 0);
}

void TcpTuning::Update(int fd, double bytes_per_second) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  if (info.tcpi_min_rtt == ~0u) return;  // Not measured yet.
  const absl::Duration rtt = absl::Microseconds(info.tcpi_min_rtt);
  const bool far = rtt >= kFarRtt;
  if (far != near_.has_value()) {
    if (far) near_ = CongestionControlOf(fd);
    UseCongestionControl(fd, far ? kFarCongestionControl : *near_);
    if (!far) near_.reset();
  }
  // What cannot be limited to so much is not to be held to less.
  if (far || !LimitSendBuffer(fd, InFlightBytes(bytes_per_second, rtt))) {
    Set(fd, SOL_SOCKET, SO_BUF_LOCK, 0);
  }
}

}  // namespace pactrain::agent
