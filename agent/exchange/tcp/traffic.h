// What one connection, or all connections to one site, has carried.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_TRAFFIC_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_TRAFFIC_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace pactrain::agent {

// Bytes to and from one peer site since the agent started, headers included.
struct SiteTraffic {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  absl::Duration rtt;                   // Smoothed; zero: not measured yet.
  double goodput_bytes_per_second = 0;  // While busy; 0: not measured yet.
  double best_bytes_per_second = 0;     // The highest of these so far.
  int bbr_connections = 0;              // That lose packets (TcpTuning).
  // In which bytes were not acknowledged yet, of all connections together.
  absl::Duration busy;
};

// By site name. Entries are never removed, so that counters never go back.
using TrafficBySite = std::map<std::string, SiteTraffic>;

// How fast all that is sent to sites other than `own` leaves, at the best rates
// of its links and in the proportions so far: the link that takes longest says.
// In bytes per second; 0: no link was measured.
double SendRate(const TrafficBySite& traffic, const std::string& own);

// What was acknowledged, and the time in which some bytes were not yet.
struct Carried {
  uint64_t bytes = 0;
  absl::Duration busy;
};

// Measures what a connection carries while bytes are on their way, as its TCP
// counts: how fast an agent can hand them to the kernel says nothing of a link.
class GoodputMeter {
 public:
  // `acknowledged`: bytes so far; `busy`: the time so far in which some were
  // not. Returns bytes per second, smoothed over the calls; 0 until there was
  // enough to tell.
  double Sample(uint64_t acknowledged, absl::Duration busy);

 private:
  uint64_t acknowledged_ = 0;  // At the last sample that counted.
  absl::Duration busy_;
  double smoothed_ = 0;
};

// What each of the connections that go through one link has of it when all send
// that carry data, in bytes per second. Measured one by one they say more than
// the link has: each is alone in some of the time in which it is busy.
class UplinkShare {
 public:
  // What each of them carried since the last call. 0: not measured yet.
  double Sample(absl::Span<const Carried> carried);

 private:
  Carried all_;
  GoodputMeter meter_;
  double carrying_ = 1;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TRAFFIC_H_
