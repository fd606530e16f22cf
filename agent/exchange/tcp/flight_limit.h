// How much of a data connection the kernel shall hold, and what else follows
// from what its TCP measured.
//
// The kernel is given little at a time: the in-flight bytes of both directions
// queue in front of the same slow link, and acknowledgements wait behind data.
// If one direction holds more than the other it leaves that only a part of the
// rate (seen: a third) until it ends. With the same few bytes each, both have
// all of it, and ordinary queues do not overflow.
//
// Of a far link (its least round trip is kFarRtt or more) a rate that few bytes
// on their way allow says little. So while the limit holds a connection back
// and no queue shows, it is doubled. A far connection that loses packets all
// the same needs another congestion control.
//
// Pure; thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_FLIGHT_LIMIT_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_FLIGHT_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace pactrain::agent {

inline constexpr absl::Duration kFarRtt = absl::Milliseconds(5);
// Four frames: two being sent, two on their way.
inline constexpr size_t kLeastInFlightBytes = 64 << 10;
// One frame, where other connections keep the same link busy meanwhile. More of
// each is a queue by which some get ahead of others.
inline constexpr size_t kLeastSharedBytes = 16 << 10;
// Until an agent that waits for a processor gets its turn.
inline constexpr absl::Duration kTurn = absl::Milliseconds(25);

// Twice bandwidth x round trip, what goes meanwhile in a turn, and `least`, so
// that of two directions the one that holds too little gets its share back.
size_t InFlightBytes(double bytes_per_second, absl::Duration least_rtt,
                     size_t least = kLeastInFlightBytes);

// What TCP measured of a connection.
struct TcpState {
  absl::Duration least_rtt;   // Of the last minutes.
  absl::Duration rtt;         // Smoothed.
  uint64_t acknowledged = 0;  // Bytes so far, as the next two.
  uint64_t sent = 0;          // With those sent again.
  uint64_t sent_again = 0;
  uint64_t segment_bytes = 0;
  double bytes_per_second = 0;  // 0: not measured yet.
};

// Whether a connection's link is far, from what TCP measured. On a connection
// that carries next to nothing the least round trip is just that of pings,
// which may all have waited behind what others sent. So one that was near
// becomes far only by what it carried itself, and not while that waits.
class Farness {
 public:
  explicit Farness(absl::Duration far_rtt) : far_rtt_(far_rtt) {}
  // Returns far().
  bool Update(const TcpState& state);
  bool far() const { return far_.value_or(false); }
  absl::Duration far_rtt() const { return far_rtt_; }

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
// A single burst of losses is no such share: it takes three stretches of 4 MiB.
class Losses {
 public:
  // Returns many(), which stays until Restart(): the control that is then used
  // loses less, or does not mind.
  bool Update(const TcpState& state);
  // What was so far does not count.
  void Restart(const TcpState& state);
  bool many() const { return stretches_ >= 3; }

 private:
  uint64_t sent_ = 0;  // At the end of the last stretch.
  uint64_t sent_again_ = 0;
  int stretches_ = 0;  // With many losses, one after the other.
};

class FlightLimit {
 public:
  explicit FlightLimit(absl::Duration far_rtt) : farness_(far_rtt) {}

  // To be called again and again: both rate and round trip get known late.
  // `share`: of a link that goes to several sites, in bytes per second; 0: the
  // connection's is none of these. Of near ones equal shares make equal limits.
  // For what waits in front of a link gets it in proportion, and a rate that is
  // large because of that would make itself larger: some sites then run ahead,
  // and as a total needs all of them, those left behind end a step alone (with
  // five sites 1.2 to 1.5 of the shortest step).
  void Update(const TcpState& state, double share = 0);
  // Whether there is a point in looking at the state for Double(). `now`:
  // monotonic.
  bool MayDouble(absl::Duration now) const;
  // The limit holds the connection back, `state` is of now. Returns whether it
  // was doubled.
  bool Double(const TcpState& state, absl::Duration now);

  size_t bytes() const { return bytes_; }
  bool is_far() const { return farness_.far(); }
  // Far, and with many losses: those of a near one are not counted.
  bool is_lossy() const { return losses_.many(); }

 private:
  Farness farness_;
  Losses losses_;
  size_t bytes_ = kLeastInFlightBytes;
  absl::Duration doubled_ = -absl::InfiniteDuration();  // When it was.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_FLIGHT_LIMIT_H_
