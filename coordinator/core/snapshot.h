// What the coordinator knows, for the admin service and the metrics.
//
// Plain values, made by CoordinatorState::Snapshot().
#ifndef PACTRAIN_COORDINATOR_CORE_SNAPSHOT_H_
#define PACTRAIN_COORDINATOR_CORE_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/account.h"
#include "coordinator/core/mask_votes.h"
#include "coordinator/core/pin.h"
#include "protocol/frame.h"
#include "protocol/keep_by_parameter.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

// kFailed: it ended, and not in order.
enum class GroupPhase { kWaiting, kRunning, kEnded, kFailed };
absl::string_view GroupPhaseName(GroupPhase phase);  // "waiting", ...

// One direction of a link as one agent last measured it.
struct LinkSnapshot {
  std::string agent;
  std::string site;
  std::string peer_site;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  double goodput_bytes_per_second = 0;
  double rtt_seconds = 0;
};

// Means of an agent's newest steps, from commit to commit.
struct AgentPace {
  std::string agent;
  double wait_seconds = 0;      // Of it, after its trainers' last submit.
  double interval_seconds = 0;  // Above 0.
};

struct NodePath {
  std::string agent;
  protocol::DevicePath path;
};

struct GroupSnapshot {
  protocol::GroupId group;
  GroupPhase phase = GroupPhase::kWaiting;
  std::string reason;
  std::optional<protocol::Generation> generation;
  // Nothing: no generation runs, or its agents have not told since the
  // coordinator's start.
  std::optional<protocol::Decision> in_force;
  std::optional<protocol::Decision> prepared;
  std::vector<protocol::Decision> history;  // Newest first.
  // Of the newest generation.
  uint64_t committed_step = 0;
  uint64_t committed_count = 0;
  uint64_t failed_attempts = 0;
  // Of all generations since this coordinator started.
  uint64_t committed_total = 0;
  uint64_t failed_attempts_total = 0;
  protocol::AttemptsByCause failed_by_cause_total = {};  // The first: not told.
  uint64_t norm_alarms_total = 0;
  double step_seconds = 0;
  uint64_t kept_elements = 0;  // Of the newest equal mask votes; 0 of 0: none.
  uint64_t elements = 0;
  // Of the newest generation; nobody has voted for masks, or no step left
  // elements out: nothing.
  std::optional<MaskProgress> masks;
  std::optional<uint64_t> first_compacted_step;
  VoteCount votes;
  // As rank 0 told last; null: it has not, or the masks are others by now.
  std::shared_ptr<const protocol::KeepByParameter> keep_by_parameter;
  std::vector<LinkSnapshot> links;
  // By agent, of the newest generation, where models are on devices.
  std::vector<NodePath> node_paths;
  std::vector<AgentPace> paces;  // By agent, of those that have reported.
  // Of the time of a step, what trainers wait for the exchange; not measured,
  // or no generation runs: nothing.
  std::optional<double> exchange_share;
  // r of the decision in force, over its newest measured steps, and the part of
  // it that clipping makes; not known, or no generation runs: nothing.
  std::optional<double> risk;
  std::optional<double> risk_clip;
  std::optional<Pin> pin;
  AccountSnapshot account;
  // This and all totals count from then on: this coordinator first heard of it.
  absl::Time counted_since;
  // Of the newest generation, without a stream to the coordinator; after a
  // generation that did not end in order, those whose trainers did not leave,
  // until they are back, or another generation is formed.
  std::vector<std::string> lost_agents;
  // An agent has waited for it longer than for a slow step: "agent y (site b):
  // rank 1 has not submitted bucket 0"; empty: for nobody, or none runs.
  std::string waits_for;
  // Since its newest generation ended; nothing: it runs, or there was none.
  std::optional<double> ended_seconds;
};

struct AgentSnapshot {
  std::string agent;
  std::string site;
  bool connected = false;
  std::string data_address;
  std::string version;          // Of its software.
  std::string metrics_address;  // Empty: none that others reach.
  std::string drained = {};     // Why it takes no trainers; empty: it does.
};

struct StateSnapshot {
  std::string cluster_id;
  uint64_t term = 0;
  bool read_only = false;
  double risk_bound = 0;
  std::vector<AgentSnapshot> agents;
  std::vector<GroupSnapshot> groups;
  // Agents that keep what the audit log does not have, and one more if it was
  // not as it had been written at the start; filled in by the driver.
  size_t audit_contradicted = 0;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_SNAPSHOT_H_
