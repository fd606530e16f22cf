// What a data connection asks of the kernel's TCP, and how much it gives it.
// Whatever is not there or not allowed only costs speed or early detection: no
// errors.
//
// The kernel is given little at a time: the in-flight bytes of both directions
// queue in front of the same slow link, and acknowledgements wait behind data.
// If one direction holds more than the other it leaves that only a part of the
// rate (seen: a third) until it ends. With the same few bytes each, both have
// all of it, and ordinary queues do not overflow. The kernel's own limit
// (SO_SNDBUF) does not do: it ends at wmem_max, by default far less than 1 Gbps
// needs. Congestion control stays the system's.
//
// Of a far link (its least round trip is kFarRtt or more) a rate that few bytes
// on their way allow says little. So while it holds a connection back and no
// queue shows, the limit is doubled. A far connection that loses packets all
// the same is left to the kernel's own buffer sizes and to bbr, which keeps its
// rate then. Not before: bbr halts for 200 ms every ten seconds to look for the
// least round trip, and slows down short steps.
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

// What the kernel shall hold of a connection, sent or not: twice bandwidth x
// round trip, what goes meanwhile in a turn, and a little, so that of two
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

// Whether a connection loses so much that a congestion control that slows down
// with each loss cannot fill its pipe: with a share p of what is sent lost, it
// keeps sqrt(1.5 / p) segments on their way (Mathis et al., "The macroscopic
// behavior of the TCP congestion avoidance algorithm", 1997). Where that is
// what a connection has, it would have had more without.
//
// A single burst of losses is no such share: it takes two stretches of 16 MiB.
class Losses {
 public:
  // `sent`, `sent_again`: bytes of the connection so far, the former with the
  // latter. `segments`: on their way while it is busy. Returns many(), which
  // stays: the control that is then used loses less, or does not mind.
  bool Update(uint64_t sent, uint64_t sent_again, double segments);
  bool many() const { return stretches_ >= 2; }

 private:
  uint64_t sent_ = 0;  // At the end of the last stretch.
  uint64_t sent_again_ = 0;
  int stretches_ = 0;  // With many losses, one after the other.
};

// Of one connected socket.
class TcpTuning {
 public:
  // `suspect`: unacknowledged for so long, it breaks. `far_rtt`: see above.
  TcpTuning(int fd, absl::Duration suspect, absl::Duration far_rtt = kFarRtt);
  // To be called again and again: both rate and round trip get known late.
  void Update(int fd);
  // Whether the kernel may be given more now; if not, ask again kPause later.
  // `now`: monotonic.
  bool HasRoom(int fd, absl::Duration now);

  bool is_far() const { return farness_.far(); }
  // Whether it is left to the kernel because it loses packets.
  bool is_lossy() const { return !own_control_.empty(); }
  // Bytes per second; 0: not measured yet.
  double goodput() const { return goodput_; }

 private:
  Farness farness_;
  Losses losses_;
  GoodputMeter meter_;
  double goodput_ = 0;
  size_t in_flight_bytes_ = kLeastInFlightBytes;
  absl::Duration doubled_ = -absl::InfiniteDuration();  // When it was.
  std::string own_control_;  // Its congestion control, while it has bbr.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_
