// What a data connection asks of the kernel's TCP, and how much it gives it.
// Whatever is not there or not allowed only costs speed or early detection: no
// errors.
//
// Over a near link the kernel is given little at a time: the in-flight bytes of
// both directions queue in front of the same slow link, and acknowledgements
// wait behind data. If one direction holds more than the other it leaves that
// only a part of the rate (seen: a third) until it ends. With the same few
// bytes each, both have all of it. The kernel's own limit (SO_SNDBUF) does not
// do: it ends at wmem_max, by default far less than 1 Gbps needs. Congestion
// control stays the system's.
//
// Over a far link (its least round trip is kFarRtt or more) what fills the pipe
// is much more than such queues: the kernel's own buffer sizes, and bbr, which
// keeps the rate when packets are lost by chance.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "agent/exchange/tcp/traffic.h"

namespace pactrain::agent {

inline constexpr absl::Duration kFarRtt = absl::Milliseconds(5);
// Four frames: two being sent, two on their way.
inline constexpr size_t kLeastInFlightBytes = 64 << 10;
// Until an agent that waits for a processor gets its turn.
inline constexpr absl::Duration kTurn = absl::Milliseconds(25);
// Who has no room asks again then: an eighth of what goes in a turn has gone.
inline constexpr absl::Duration kPause = absl::Milliseconds(3);

// What the kernel shall hold of a near connection, sent or not: twice bandwidth
// x round trip, what goes meanwhile in a turn, and a little, so that of two
// directions the one that holds too little gets its share back.
size_t InFlightBytes(double bytes_per_second, absl::Duration least_rtt);

// How much is taken from the queue at a time. What is taken can no longer be
// overtaken, nor go by another connection, and frames that come in other orders
// from the sites below an owner leave the way down idle: so it is little time
// on the link. Where that is much data, the kernel sends it in larger pieces.
size_t BatchBytes(double bytes_per_second);

// Whether a connection's link is far, from what TCP measured. Its least round
// trip is that of the last minutes: on a connection that carries next to
// nothing just that of pings, which may all have waited behind what others
// sent. So one that was near becomes far only by what it carried itself.
class Farness {
 public:
  explicit Farness(absl::Duration far_rtt) : far_rtt_(far_rtt) {}
  // `acknowledged`: bytes of the connection so far. Returns far().
  bool Update(absl::Duration least_rtt, uint64_t acknowledged);
  bool far() const { return far_.value_or(false); }

 private:
  const absl::Duration far_rtt_;
  uint64_t acknowledged_ = 0;  // At the last update.
  std::optional<bool> far_;    // Not measured yet.
};

// Of one connected socket.
class TcpTuning {
 public:
  // `suspect`: unacknowledged for so long, it breaks. `far_rtt`: see above.
  TcpTuning(int fd, absl::Duration suspect, absl::Duration far_rtt = kFarRtt);
  // To be called again and again: both rate and round trip get known late.
  void Update(int fd);
  // Whether the kernel may be given more now; if not, ask again kPause later.
  bool HasRoom(int fd) const;

  bool is_far() const { return farness_.far(); }
  // Bytes per second; 0: not measured yet.
  double goodput() const { return goodput_; }

 private:
  Farness farness_;
  GoodputMeter meter_;
  double goodput_ = 0;
  size_t in_flight_bytes_ = kLeastInFlightBytes;  // While near.
  std::string near_;  // The congestion control that it had before bbr.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_
