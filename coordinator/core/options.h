// Settings of the coordinator's core. Plain values.
#ifndef PACTRAIN_COORDINATOR_CORE_OPTIONS_H_
#define PACTRAIN_COORDINATOR_CORE_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

struct Options {
  // Of FULL and COMPACTED: fp32 or bf16.
  protocol::Codec codec = protocol::Codec::kFp32;
  // Steps for which unequal mask votes may keep a decision with a mask set, and
  // for which a refused decision is not tried again; 1..1e6.
  uint32_t epoch_steps = 50;
  // TERNARY may cost at most this share of the effective batch (r), 0..1; 0: it
  // is never chosen. safe 0.1, balanced 0.3, fast 1.
  double risk_bound = 0.3;
  // TERNARY is not chosen where waiting for the exchange takes a smaller share
  // of a step; 0..1.
  double min_exchange_share = 0.1;
  // A gradient whose norm is more than so many times the median of those before
  // it is alarmed of; above 1, 0: none is.
  double norm_alarm = 100;
  // Pairs of sites joined by a link. Empty: all sites hang on a common core.
  std::vector<std::pair<std::string, std::string>> links;
  // Bytes per second between a site and the common core; only without `links`.
  std::map<std::string, double> site_rates;
  // Told to agents; 10 ms..10 s.
  absl::Duration heartbeat_interval = absl::Seconds(1);
  // A stream that is silent this long is closed; > heartbeat_interval.
  absl::Duration agent_timeout = absl::Seconds(3);
  // A trainer of whose group its agent has said nothing this long after a new
  // stream was opened is gone.
  absl::Duration rejoin_timeout = absl::Seconds(3);
  // An agent without a stream for this long does not hold back a new launch.
  absl::Duration gone_after = absl::Seconds(10);
  // Where ranks come and go: how long those of the last generation that may
  // still come back are waited for, unless as many as before are needed.
  absl::Duration regroup_timeout = absl::Seconds(10);
  // Where ranks come and go: whoever may hold the job's state counts as dead
  // when nobody has spoken for it so long, and a launch may begin anew.
  absl::Duration presume_dead_after = absl::InfiniteDuration();
  // The others of a generation may go on this long after the first detached.
  absl::Duration detach_grace = absl::Seconds(5);
  // The same where ranks come and go: they are told no more than to attach
  // again.
  absl::Duration leave_grace = absl::Seconds(1);
  // A launch that cannot form (models differ) is refused this long.
  absl::Duration refusal_time = absl::Seconds(60);
  int max_agents = 1024;  // With a stream.

  // InvalidArgument: names the field, what it is and what is allowed.
  absl::Status Check() const;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_OPTIONS_H_
