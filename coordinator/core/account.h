// What a group's steps cost and saved since the coordinator saw it first, from
// its agents' step reports (telemetry: lost and repeated freely).
//
// Seconds saved against FULL: the bytes that an agent's links were spared, over
// the best rates that were measured on them, of the link that takes longest; of
// the agent with the most. An agent's bytes are taken to be spread over its
// links as all that it sends. What an exchange hides behind computing is not
// taken off, and a link without a measured rate counts for nothing. The best
// rate, since few bytes at a time show none: round trips are most of their
// time.
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

#include "absl/time/time.h"
#include "protocol/control.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

inline constexpr std::array<protocol::Mode, 3> kModes = {
    protocol::Mode::kFull, protocol::Mode::kCompacted,
    protocol::Mode::kTernary};

// From a mode to one that sends more.
struct Fallback {
  protocol::Mode from, to;
  bool operator==(const Fallback&) const = default;
};
inline constexpr std::array<Fallback, 3> kFallbacks = {
    {{protocol::Mode::kCompacted, protocol::Mode::kFull},
     {protocol::Mode::kTernary, protocol::Mode::kFull},
     {protocol::Mode::kTernary, protocol::Mode::kCompacted}}};

// All of it since the coordinator saw the group first.
struct AccountSnapshot {
  // Sent between sites, as StepReport has it, by all agents.
  double sent_bytes = 0;
  double kept_bytes = 0;
  double dense_bytes = 0;
  double saved_seconds = 0;
  std::array<double, kModes.size()> mode_seconds = {};
  // From commit to commit, as last measured; 0: not measured.
  std::array<double, kModes.size()> mode_interval_seconds = {};
  std::array<uint64_t, kFallbacks.size()> fallbacks = {};
  uint64_t mask_changes = 0;
};

class Account {
 public:
  // The next reports count from 0 again.
  void BeginGeneration();
  // `agent` is a member of the generation.
  void Add(const std::string& agent, const protocol::StepReport& report);
  // From `now` on, until the next call; nothing: no decision is in force.
  void Enter(const std::optional<protocol::Decision>& in_force,
             absl::Duration now);
  // What all trainers voted for alike. Empty: no masks.
  void NoteMasks(const protocol::Digest& masks);

  AccountSnapshot At(absl::Duration now) const;

 private:
  struct Link {
    uint64_t sent = 0;     // As last reported.
    double spared = 0;     // Bytes.
    double best_rate = 0;  // Bytes per second; 0: not measured.
  };
  struct Sent {
    uint64_t frames = 0, kept = 0, dense = 0;
    uint64_t version = 0;
    std::map<std::string, Link> links;  // By peer site.
    void Spare(double bytes, const protocol::StepReport& report);
    double SavedSeconds() const;  // Below 0: it cost more than FULL.
  };
  void Sum(AccountSnapshot& total) const;

  AccountSnapshot before_;            // Of the generations before, but for
  std::map<std::string, Sent> sent_;  // this one's, by agent.
  std::optional<protocol::Mode> mode_;
  uint64_t version_ = 0;  // In force.
  absl::Duration since_;  // mode_ is in force.
  std::optional<protocol::Digest> masks_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_ACCOUNT_H_
