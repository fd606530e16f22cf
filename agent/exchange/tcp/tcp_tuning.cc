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
// So many between two updates tell of the link what pings do not.
constexpr uint64_t kTellingBytes = 64 << 10;
constexpr size_t kAnyBytes = ~size_t{0};
constexpr uint64_t kTellingOfLossBytes = 16 << 20;
// Until round trips show what a limit twice as large does.
constexpr absl::Duration kLeastDoubling = absl::Milliseconds(50);
constexpr char kLossyCongestionControl[] = "bbr";

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

// Whether what is on its way waits somewhere.
bool Queues(const tcp_info& info) {
  return absl::Microseconds(info.tcpi_rtt) >
         absl::Microseconds(info.tcpi_min_rtt) + kTurn / 2;
}

}  // namespace

size_t InFlightBytes(double bytes_per_second, absl::Duration least_rtt) {
  const double seconds = absl::ToDoubleSeconds(2 * least_rtt + kTurn);
  return kLeastInFlightBytes + static_cast<size_t>(bytes_per_second * seconds);
}

bool Farness::Update(absl::Duration least_rtt, uint64_t acknowledged) {
  const bool far = least_rtt >= far_rtt_;
  const uint64_t carried = acknowledged - acknowledged_;
  acknowledged_ = acknowledged;
  if (!far || !far_.has_value() || carried >= kTellingBytes) far_ = far;
  return *far_;
}

bool Losses::Update(uint64_t sent, uint64_t sent_again, double segments) {
  const double bytes = static_cast<double>(sent - sent_);
  if (bytes < kTellingOfLossBytes || many()) return many();
  const double share = static_cast<double>(sent_again - sent_again_) / bytes;
  // Within a factor of two of what the losses allow.
  stretches_ = share * segments * segments > 1.5 / 4 ? stretches_ + 1 : 0;
  sent_ = sent;
  sent_again_ = sent_again;
  return many();
}

size_t BatchBytes(double bytes_per_second) {
  const double bytes = bytes_per_second * absl::ToDoubleSeconds(kBatchTime);
  return std::clamp(static_cast<size_t>(bytes), kLeastBatchBytes,
                    kMostBatchBytes);
}

TcpTuning::TcpTuning(int fd, absl::Duration suspect, absl::Duration far_rtt)
    : farness_(far_rtt) {
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<unsigned>(absl::ToInt64Milliseconds(suspect)));
  Set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentInKernelBytes);
  Update(fd);
}

void TcpTuning::Update(int fd) {
  const std::optional<tcp_info> info = InfoOf(fd);
  if (!info) {
    in_flight_bytes_ = kAnyBytes;  // Linux before 4.10: no rate to limit by.
    return;
  }
  goodput_ = meter_.Sample(info->tcpi_bytes_acked,
                           absl::Microseconds(info->tcpi_busy_time));
  if (info->tcpi_min_rtt == ~0u) return;  // Not measured yet.
  const absl::Duration rtt = absl::Microseconds(info->tcpi_min_rtt);
  const bool far = farness_.Update(rtt, info->tcpi_bytes_acked);
  const double segments =
      goodput_ * absl::ToDoubleSeconds(rtt) / std::max(info->tcpi_snd_mss, 1u);
  const bool lossy = far && losses_.Update(info->tcpi_bytes_sent,
                                           info->tcpi_bytes_retrans, segments);
  if (lossy && !is_lossy()) {
    std::string own = CongestionControlOf(fd);
    if (UseCongestionControl(fd, kLossyCongestionControl)) {
      own_control_ = std::move(own);
    }
  } else if (!lossy && is_lossy()) {
    UseCongestionControl(fd, std::exchange(own_control_, ""));
  }
  if (is_lossy()) {
    in_flight_bytes_ = kAnyBytes;
    return;
  }
  // Of a near one more is the queue in front of its link: see Farness.
  const size_t by_rate =
      InFlightBytes(goodput_, far ? rtt : std::min(rtt, kFarRtt));
  // What was doubled stays until a queue shows.
  const bool keeps = far && !Queues(*info) && in_flight_bytes_ != kAnyBytes;
  in_flight_bytes_ = keeps ? std::max(in_flight_bytes_, by_rate) : by_rate;
}

bool TcpTuning::HasRoom(int fd, absl::Duration now) {
  if (in_flight_bytes_ == kAnyBytes) return true;
  int held = 0;
  if (ioctl(fd, SIOCOUTQ, &held) != 0 ||
      static_cast<size_t>(held) < in_flight_bytes_) {
    return true;
  }
  if (!is_far() || now - doubled_ < kLeastDoubling) return false;
  const std::optional<tcp_info> info = InfoOf(fd);
  if (!info || now - doubled_ < 2 * absl::Microseconds(info->tcpi_rtt) ||
      Queues(*info)) {
    return false;
  }
  doubled_ = now;
  in_flight_bytes_ *= 2;
  return true;
}

}  // namespace pactrain::agent
