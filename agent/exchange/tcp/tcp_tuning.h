// What a data connection asks of the kernel's TCP. Whatever is not there or not
// allowed only costs speed or early detection: no errors.
//
// On a near link the kernel may hold little: the in-flight bytes of both
// directions queue in front of the same slow link, and acknowledgements wait
// behind data. If one direction holds more than the other it leaves that only a
// part of the rate (seen: a third) until it ends. With the same few bytes each,
// both have all of it. Congestion control stays the system's.
//
// On a far link (its least round trip is kFarRtt or more) what fills the pipe
// is much more than such queues: the kernel's own buffer sizes, and bbr, which
// keeps the rate when packets are lost by chance.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace pactrain::agent {

inline constexpr absl::Duration kFarRtt = absl::Milliseconds(5);
// Four frames: two being sent, two on their way.
inline constexpr size_t kLeastInFlightBytes = 64 << 10;
// Until an agent that waits for a processor gets its turn.
inline constexpr absl::Duration kTurn = absl::Milliseconds(25);

// What the kernel shall hold of a near connection, sent or not, that carries so
// much while it is busy: twice bandwidth x round trip, and what goes meanwhile.
size_t InFlightBytes(double bytes_per_second, absl::Duration least_rtt);

// Of one connected socket.
class TcpTuning {
 public:
  // `suspect`: unacknowledged for so long, it breaks.
  TcpTuning(int fd, absl::Duration suspect);
  // To be called again and again: both rate and round trip get known late.
  void Update(int fd, double bytes_per_second);

 private:
  std::optional<std::string> near_;  // While far: what it had before bbr.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TCP_TUNING_H_
