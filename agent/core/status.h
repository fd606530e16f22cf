// What an agent knows about its groups, for the metrics. Plain values.
#ifndef PACTRAIN_AGENT_CORE_STATUS_H_
#define PACTRAIN_AGENT_CORE_STATUS_H_

#include <array>
#include <cstdint>
#include <string>

#include "agent/core/collective.h"
#include "base/histogram.h"
#include "protocol/frame.h"
#include "protocol/types.h"

namespace pactrain::agent {

// A step of gradients from commit to commit, as one agent sees it.
enum class Phase {
  kCompute,  // To the last local submit: the node's trainers work.
  // From there to the last result:
  kWait,  // for the first bytes of the last of those that send here,
  kSum,   // adding up and encoding, after the last local submit,
  kLink,  // and the rest.
  kVote,  // To the commit.
};
inline constexpr size_t kPhases = 5;
using PhaseTimes = std::array<base::Histogram, kPhases>;

// Counters grow while the agent lives, over all generations of the group.
struct GroupStatus {
  protocol::GroupId group;
  uint64_t generation = 0;  // 0: none runs.
  std::string phase;        // "waiting", "running", "ended".
  int trainers = 0;         // Attached here.
  uint64_t next_step = 0;
  uint64_t committed_count = 0;
  protocol::AttemptsByCause failed_attempts = {};
  uint64_t refused_steps = 0;      // Not applied, and the generation lived on.
  uint64_t ended_generations = 0;  // By an error.
  uint64_t dense_steps = 0;        // Committed as DENSE.
  // Data frames of committed and failed attempts to and from other sites.
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  // Elements in the frames of sent_bytes: as fp32; and as fp32 of all elements,
  // which is what FULL had sent.
  uint64_t sent_kept_bytes = 0;
  uint64_t sent_dense_bytes = 0;
  PhaseTimes phases = {};
  bool nccl_ready = false;  // Trainers here sum buckets by NCCL.
  CollectiveCounters nccl;
  protocol::Decision decision;  // In force for next_step.
  uint64_t candidate = 0;       // Version of the prepared decision; 0: none.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_STATUS_H_
