// What one connection, or all connections to one site, has carried.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_TRAFFIC_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_TRAFFIC_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace pactrain::agent {

// Bytes to and from one peer site since the agent started, headers included.
struct SiteTraffic {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  absl::Duration rtt;                   // Smoothed; zero: not measured yet.
  double goodput_bytes_per_second = 0;  // While busy; 0: not measured yet.
};

// By site name. Entries are never removed, so that counters never go back.
using TrafficBySite = std::map<std::string, SiteTraffic>;

// Measures the rate of a sender over the time in which it had something to
// send.
class GoodputMeter {
 public:
  void Busy(absl::Duration now);
  void Sent(uint64_t bytes) { bytes_ += bytes; }
  void Idle(absl::Duration now);

  // Bytes per second, smoothed over the calls; 0 until there was enough to
  // tell.
  double Sample(absl::Duration now);

 private:
  bool busy_ = false;
  absl::Duration busy_since_;
  absl::Duration busy_time_;  // Before busy_since_, since the last sample.
  uint64_t bytes_ = 0;        // Since the last sample.
  double smoothed_ = 0;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TRAFFIC_H_
