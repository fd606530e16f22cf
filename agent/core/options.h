// Settings of an agent's core: plain values, and what it may use.
#ifndef PACTRAIN_AGENT_CORE_OPTIONS_H_
#define PACTRAIN_AGENT_CORE_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/core/share_out.h"
#include "base/digest.h"

namespace pactrain::agent {

struct Options {
  std::string agent;  // Name, unique in the cluster.
  base::Digest incarnation;
  std::string site;
  static constexpr absl::Duration kMinStepDeadline = absl::Milliseconds(100);
  static constexpr absl::Duration kMaxStepDeadline = absl::Hours(24);
  // Bounds the time without byte progress of a step that all trainers have
  // submitted. All other limits but the next derive from it.
  absl::Duration step_deadline = absl::Seconds(60);
  static constexpr absl::Duration kMinStragglerTimeout =
      absl::Milliseconds(100);
  static constexpr absl::Duration kMaxStragglerTimeout = absl::Hours(168);
  // How long a step waits for a trainer that is connected but has not
  // submitted.
  absl::Duration straggler_timeout = absl::Minutes(30);
  // Of all trainers' slots and results together; 0: no limit of its own.
  uint64_t max_memory_bytes = 0;
  int max_trainers = 1024;
  // Before the commit trainers are told how far results are written each time
  // that so many more are.
  uint64_t told_elements = 256 * 1024;  // 1 MiB.
  // For the sums of the local trainers' slots.
  ShareOut share_out = DoAlone;
  // For how long that takes; monotonic. A core has no clock of its own.
  std::function<absl::Duration()> stopwatch = [] { return absl::Duration(); };

  // InvalidArgument: names the field, what it is and what is allowed.
  absl::Status Check() const;

  // Without byte progress, after which an attempt is given up.
  absl::Duration stall_timeout() const { return step_deadline / 6; }
  // For what the members must find out without each other's silence: an
  // unresolved attempt or a lost connection ends the generation after it.
  absl::Duration resolution_timeout() const { return step_deadline / 12; }
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_OPTIONS_H_
