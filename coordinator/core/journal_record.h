// What the coordinator makes durable, and the state that reading it back gives.
//
// Plain values. `Recovered` is a fold of all records in order, so a journal in
// memory, in SQLite or in the simulator recovers the same state.
#ifndef PACTRAIN_COORDINATOR_CORE_JOURNAL_RECORD_H_
#define PACTRAIN_COORDINATOR_CORE_JOURNAL_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/core/pin.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

// Ranks as their trainers asked for them.
using RanksByLaunch = std::map<std::string, std::set<uint32_t>>;

// Decisions of a group that are kept, newest first.
inline constexpr size_t kMaxHistory = 20;

// Steps are reserved this far ahead, and again when fewer than half are left,
// so that reports cost a write once in many steps only.
inline constexpr uint64_t kReserveSteps = 1000;

// Somebody who may hold the state of a group's lineage and is not of its newest
// generation.
struct Holder {
  uint32_t rank = 0;  // In the generation in which it got the state.
  protocol::Digest attach_id;
  std::string agent;
  protocol::Digest incarnation;
  std::string site;
  bool proves = false;  // As protocol::Member has it.
  bool operator==(const Holder&) const = default;
};

// A generation with its first decision. Reserves steps, too. Without a donor it
// begins a new lineage.
struct GenerationFormed {
  protocol::Generation generation;
  std::vector<Holder> away = {};
};

// A lineage is over: who holds a state of it is out of the job.
struct LineageEnded {
  protocol::GroupId group;
  protocol::Digest lineage;
  std::string how;  // By whom: follows "it is over: ".
  std::string at;   // UTC.
  bool operator==(const LineageEnded&) const = default;
};

struct GenerationEnded {
  protocol::GroupId group;
  uint64_t generation = 0;
  std::string reason;
  uint64_t next_step = 0;  // First step that no report of it has named.
};

struct DecisionMade {
  protocol::GroupId group;
  uint64_t generation = 0;
  protocol::Decision decision;
};

struct DecisionRevoked {
  protocol::GroupId group;
  uint64_t generation = 0;
  uint64_t version = 0;
  std::string reason;
};

// All trainers of a generation settled on this mask set.
struct MaskSetStable {
  protocol::GroupId group;
  uint64_t generation = 0;
  protocol::Digest mask_digest;
  protocol::Digest layout_digest;
  uint64_t kept_elements = 0;
  uint64_t elements = 0;
};

// Steps below `step` may have been used: a generation formed without any report
// from its predecessor starts here, so that steps never go back.
struct StepsReserved {
  protocol::GroupId group;
  uint64_t step = 0;
};

// Who has left a group whose ranks come and go by his own will, so far: nobody
// has to take his place. The whole of it, in place of the record before.
struct TrainersDetached {
  protocol::GroupId group;
  uint64_t generation = 0;
  std::set<uint32_t> ranks;  // Of that generation.
  RanksByLaunch of_launch;   // As asked for; of earlier generations, too.
};

// The group's state is dropped to make room; it ended long ago.
struct GroupForgotten {
  protocol::GroupId group;
  std::string why = {};  // For whom; told to the audit log alone.
};

// What an operator wants to travel; nothing: the policy decides.
struct PinSet {
  protocol::GroupId group;
  std::optional<Pin> pin;
};

// Somebody may do nothing any more: a rule as a policy's deny list has it
// (grants.h). Given anew it takes the place of the one before.
struct IdentityDenied {
  std::string who;
  std::string by;
  std::string at;  // UTC.
  bool operator==(const IdentityDenied&) const = default;
};

// That one counts no more.
struct IdentityReadmitted {
  std::string who;
};

// This process of an agent takes no trainers.
struct AgentDrained {
  std::string agent;
  protocol::Digest incarnation;
  std::string by;
  bool force = false;  // Also where that ended jobs.
  bool operator==(const AgentDrained&) const = default;
};

// It does again, or another process has its name.
struct AgentUndrained {
  std::string agent;
  std::string how;  // "by an operator".
};

using JournalRecord =
    std::variant<GenerationFormed, GenerationEnded, LineageEnded, DecisionMade,
                 DecisionRevoked, MaskSetStable, StepsReserved,
                 TrainersDetached, GroupForgotten, PinSet, IdentityDenied,
                 IdentityReadmitted, AgentDrained, AgentUndrained>;

// What survives a restart.
struct Recovered {
  struct Group {
    protocol::Generation generation;  // The newest.
    bool ended = false;
    std::string end_reason;
    // Newest first, at most kMaxHistory, over generations; revoked ones too.
    std::vector<protocol::Decision> history;
    // The newest decision of `generation` if it was prepared, not revoked.
    std::optional<protocol::Decision> prepared;
    uint64_t last_version = 0;
    uint64_t reserved_step = 0;
    std::optional<Pin> pin;
    std::set<uint32_t> detached_ranks;  // Of `generation`.
    RanksByLaunch detached_of;
    std::vector<Holder> away;
    std::vector<LineageEnded> ended_lineages;  // Newest first, kMaxHistory.
  };
  std::map<protocol::GroupId, Group> groups;
  std::map<std::string, IdentityDenied> denied;  // By rule.
  std::map<std::string, AgentDrained> drained;   // By agent.

  void Apply(const JournalRecord& record);
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_JOURNAL_RECORD_H_
