// What a group's steps cost and saved since the coordinator saw it first, from
// its agents' step reports (telemetry: lost and repeated freely).
//
// Seconds saved against FULL are those of the agent with the most (savings.h).
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_ACCOUNT_H_
#define PACTRAIN_COORDINATOR_CORE_ACCOUNT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/pin.h"
#include "coordinator/core/savings.h"
#include "protocol/control.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

inline constexpr std::array<protocol::Mode, 3> kModes = {
    protocol::Mode::kFull, protocol::Mode::kCompacted,
    protocol::Mode::kTernary};

// Why more is sent than before: the masks left out what is wanted now; levels
// cost too much, or their cost is not known; somebody pinned it, or let it go.
enum class FallbackCause { kMasks, kRisk, kPin };
absl::string_view FallbackCauseName(FallbackCause cause);  // "masks", ...

// From a mode to one that sends more. Those of a pin were asked for.
struct Fallback {
  protocol::Mode from, to;
  FallbackCause cause;
  bool operator==(const Fallback&) const = default;
};
inline constexpr std::array<Fallback, 7> kFallbacks = {
    {{protocol::Mode::kCompacted, protocol::Mode::kFull, FallbackCause::kMasks},
     {protocol::Mode::kCompacted, protocol::Mode::kFull, FallbackCause::kPin},
     {protocol::Mode::kTernary, protocol::Mode::kFull, FallbackCause::kMasks},
     {protocol::Mode::kTernary, protocol::Mode::kFull, FallbackCause::kRisk},
     {protocol::Mode::kTernary, protocol::Mode::kFull, FallbackCause::kPin},
     {protocol::Mode::kTernary, protocol::Mode::kCompacted,
      FallbackCause::kRisk},
     {protocol::Mode::kTernary, protocol::Mode::kCompacted,
      FallbackCause::kPin}}};

// All of it since the coordinator saw the group first.
struct AccountSnapshot {
  // Sent between sites, as StepReport has it, by all agents.
  double sent_bytes = 0;
  double kept_bytes = 0;
  double dense_bytes = 0;
  double saved_seconds = 0;
  // What this generation's part of saved_seconds is known by: by nothing, it
  // counts for nothing.
  SavedBy saved_by = SavedBy::kNothing;
  // What a step in FULL would take now at least, with links as they are and
  // computing; 0: not known (savings.h).
  double full_at_least_seconds = 0;
  std::array<double, kModes.size()> mode_seconds = {};
  // From commit to commit, as last measured; 0: not measured.
  std::array<double, kModes.size()> mode_interval_seconds = {};
  // Of a step, at the agent that is to take longest: in FULL, and in the mode
  // in force; 0: not known.
  std::array<double, kModes.size()> mode_predicted_seconds = {};
  std::array<uint64_t, kFallbacks.size()> fallbacks = {};
  uint64_t mask_changes = 0;
  uint64_t mask_unchanged_steps = 0;  // Of this generation; 0: no masks.
};

class Account {
 public:
  // The next reports count from 0 again. Before the first call they are of a
  // generation that began before the coordinator did: each agent's first one
  // says where to count from.
  void BeginGeneration();
  // `agent` is a member of the generation.
  void Add(const std::string& agent, const protocol::StepReport& report);
  // From `now` on, until the next call; nothing: no decision is in force.
  // `pin`: what somebody wants now.
  void Enter(const std::optional<protocol::Decision>& in_force,
             const std::optional<Pin>& pin, absl::Duration now);
  // What all trainers voted for alike after `step` committed steps. Empty: no
  // masks.
  void NoteMasks(const protocol::Digest& masks, uint64_t step);

  // `step`: committed in this generation.
  AccountSnapshot At(absl::Duration now, uint64_t step) const;

 private:
  struct Sent {
    double frames = 0, kept = 0, dense = 0;
    double frames_before = 0, kept_before = 0, dense_before = 0;
    uint64_t version = 0;
    Savings savings;
  };
  void Sum(AccountSnapshot& total) const;

  bool began_here_ = false;
  AccountSnapshot before_;            // Of the generations before, but for
  std::map<std::string, Sent> sent_;  // this one's, by agent.
  std::optional<protocol::Mode> mode_;
  bool masked_ = false;     // As mode_.
  std::optional<Pin> met_;  // As mode_ came into force, it met this one.
  uint64_t version_ = 0;    // In force.
  absl::Duration since_;    // mode_ is in force.
  struct Masks {
    protocol::Digest digest;
    uint64_t since = 0;  // So many committed steps.
  };
  std::optional<Masks> masks_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_ACCOUNT_H_
