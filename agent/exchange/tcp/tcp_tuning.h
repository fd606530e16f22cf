// What a data connection asks of the kernel's TCP, and how much it gives it
// (FlightLimit). Whatever is not there or not allowed only costs speed or early
// detection: no errors.
//
// The kernel's own limit (SO_SNDBUF) does not do: it ends at wmem_max, by
// default far less than 1 Gbps needs, and who sets it ends the kernel's own
// tuning. Congestion control stays the system's, but where a far connection
// loses packets: it is left to bbr, which keeps its rate then. Not before: bbr
// halts for 200 ms every ten seconds to look for the least round trip, and
// slows down short steps.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "agent/exchange/tcp/flight_limit.h"
#include "agent/exchange/tcp/traffic.h"

namespace pactrain::agent {

// Who has no room asks again then: an eighth of what goes in a turn has gone.
inline constexpr absl::Duration kPause = absl::Milliseconds(3);

// How much is taken from the queue at a time. What is taken can no longer be
// overtaken, nor go by another connection, and frames that come in other orders
// from the sites below an owner leave the way down idle: so it is little time
// on the link. Where that is much data, the kernel sends it in larger pieces.
size_t BatchBytes(double bytes_per_second);

// Whether connections start slowly after each pause, a setting of the system
// (tcp_slow_start_after_idle) that costs round trips of each step over a far
// link; false where that cannot be read.
bool SlowStartsAfterIdle();

// Of one connected socket.
class TcpTuning {
 public:
  // `suspect`: unacknowledged for so long, it breaks. `far_rtt`: a link whose
  // least round trip is that long is far.
  // `lossy_control`: the congestion control of one that loses packets.
  TcpTuning(int fd, absl::Duration suspect, absl::Duration far_rtt = kFarRtt,
            std::string lossy_control = "bbr");
  // To be called again and again.
  void Update(int fd);
  // A part of Update(): TCP measured this.
  void Apply(int fd, const TcpState& state);
  // Whether the kernel may be given more now; if not, ask again kPause later.
  // `now`: monotonic.
  bool HasRoom(int fd, absl::Duration now);

  bool is_far() const { return limit_.is_far(); }
  // Whether it is left to bbr because it loses packets.
  bool is_lossy() const { return !own_control_.empty(); }
  // Whether it should be, but the system has no bbr, or does not allow it.
  bool lacks_control() const { return lacks_control_; }
  // Bytes per second; 0: not measured yet.
  double goodput() const { return goodput_; }
  // Since the last call.
  Carried TakeCarried() {
    const Carried before = std::exchange(taken_, carried_);
    return {carried_.bytes - before.bytes, carried_.busy - before.busy};
  }
  // Its share of a link's bytes per second (UplinkShare); 0: it shares none.
  void set_share(double share) { share_ = share; }

 private:
  FlightLimit limit_;
  bool measured_ = true;  // Not by Linux before 4.10: no rate to limit by.
  GoodputMeter meter_;
  double goodput_ = 0;
  double share_ = 0;
  Carried carried_, taken_;
  const std::string lossy_control_;
  bool lacks_control_ = false;
  std::string own_control_;  // Its congestion control, while it has bbr.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_
