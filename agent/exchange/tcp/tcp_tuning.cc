#include "agent/exchange/tcp/tcp_tuning.h"

// The kernel's own header: that of Debian 12's libc does not know the least
// round trip.
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <optional>
#include <utility>

namespace pactrain::agent {
namespace {

// Unsent bytes that the kernel takes over: what is there can no longer be
// overtaken by control.
constexpr int kUnsentInKernelBytes = 64 << 10;
constexpr absl::Duration kBatchTime = absl::Milliseconds(2);
constexpr size_t kLeastBatchBytes = 32 << 10;
constexpr size_t kMostBatchBytes = 128 << 10;

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

// False: the system has not got it, or does not allow it.
bool UseCongestionControl(int fd, const std::string& name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                    static_cast<socklen_t>(name.size())) == 0;
}

// Zero-filled where the kernel knows less; nullopt: it knows too little.
std::optional<tcp_info> InfoOf(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size <= offsetof(tcp_info, tcpi_busy_time)) {
    return std::nullopt;
  }
  return info;
}

// nullopt: not measured yet.
std::optional<TcpState> StateOf(const tcp_info& info, double goodput) {
  if (info.tcpi_min_rtt == ~0u) return std::nullopt;
  return TcpState{.least_rtt = absl::Microseconds(info.tcpi_min_rtt),
                  .rtt = absl::Microseconds(info.tcpi_rtt),
                  .acknowledged = info.tcpi_bytes_acked,
                  .sent = info.tcpi_bytes_sent,
                  .sent_again = info.tcpi_bytes_retrans,
                  .segment_bytes = info.tcpi_snd_mss,
                  .bytes_per_second = goodput};
}

}  // namespace

size_t BatchBytes(double bytes_per_second) {
  const double bytes = bytes_per_second * absl::ToDoubleSeconds(kBatchTime);
  return std::clamp(static_cast<size_t>(bytes), kLeastBatchBytes,
                    kMostBatchBytes);
}

bool SlowStartsAfterIdle() {
  int value = 0;
  std::ifstream("/proc/sys/net/ipv4/tcp_slow_start_after_idle") >> value;
  return value != 0;
}

TcpTuning::TcpTuning(int fd, absl::Duration suspect, absl::Duration far_rtt,
                     std::string lossy_control)
    : limit_(far_rtt), lossy_control_(std::move(lossy_control)) {
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<unsigned>(absl::ToInt64Milliseconds(suspect)));
  Set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentInKernelBytes);
  Update(fd);
}

void TcpTuning::Update(int fd) {
  const std::optional<tcp_info> info = InfoOf(fd);
  measured_ = info.has_value();
  if (!info) return;
  carried_ = {info->tcpi_bytes_acked, absl::Microseconds(info->tcpi_busy_time)};
  goodput_ = meter_.Sample(carried_.bytes, carried_.busy);
  const std::optional<TcpState> state = StateOf(*info, goodput_);
  if (state) Apply(fd, *state);
}

void TcpTuning::Apply(int fd, const TcpState& state) {
  limit_.Update(state, share_);
  if (limit_.is_lossy() && !is_lossy() && !lacks_control_) {
    std::string own = CongestionControlOf(fd);
    lacks_control_ = !UseCongestionControl(fd, lossy_control_);
    if (!lacks_control_) own_control_ = std::move(own);
  } else if (!limit_.is_lossy() && is_lossy()) {
    UseCongestionControl(fd, std::exchange(own_control_, ""));
  }
}

bool TcpTuning::HasRoom(int fd, absl::Duration now) {
  if (is_lossy() || !measured_) return true;
  int held = 0;
  if (ioctl(fd, SIOCOUTQ, &held) != 0 ||
      static_cast<size_t>(held) < limit_.bytes()) {
    return true;
  }
  if (!limit_.MayDouble(now)) return false;
  const std::optional<tcp_info> info = InfoOf(fd);
  const auto state = info ? StateOf(*info, goodput_) : std::nullopt;
  return state && limit_.Double(*state, now);
}

}  // namespace pactrain::agent
