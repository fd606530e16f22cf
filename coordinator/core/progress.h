// How far a generation has come, from its agents' step reports (telemetry: lost
// and repeated freely, never durable).
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_PROGRESS_H_
#define PACTRAIN_COORDINATOR_CORE_PROGRESS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/snapshot.h"
#include "protocol/control.h"

namespace pactrain::coordinator {

class Progress {
 public:
  // The newest report of an agent (a member of the generation) counts.
  void Add(const std::string& agent, const std::string& site,
           const protocol::StepReport& report);

  // What an agent said last of how far it has come.
  struct Word {
    uint64_t committed_step = 0;
    uint64_t committed_count = 0;
    std::string waits_for;
    std::optional<protocol::DevicePath> device_path;
  };
  const Word* Of(const std::string& agent) const;  // Null: nothing yet.

  // A commit is a commit of all: the agent that is farthest ahead counts.
  uint64_t committed_step() const { return committed_step_; }
  uint64_t committed_count() const { return committed_count_; }
  uint64_t failed_attempts() const { return failed_attempts_; }
  // Of these, whose cause was told.
  const protocol::AttemptsByCause& failed_by_cause() const {
    return failed_by_cause_;
  }
  std::optional<uint64_t> first_compacted_step() const {
    return first_compacted_step_;
  }
  uint64_t version_in_force() const { return version_in_force_; }
  double step_seconds() const { return step_seconds_; }
  // Of the time from commit to commit, what the trainers wait for the exchange:
  // at the agent that waits least, since others may wait for its trainers, too.
  std::optional<double> exchange_share() const;
  // As GroupSnapshot has it, by the agents that are as far as any.
  std::string waits_for() const;
  bool any() const { return !links_.empty(); }
  std::vector<LinkSnapshot> Links() const;
  std::vector<AgentPace> Paces() const;
  std::vector<NodePath> Paths() const;

 private:
  uint64_t committed_step_ = 0;
  uint64_t committed_count_ = 0;
  uint64_t failed_attempts_ = 0;
  protocol::AttemptsByCause failed_by_cause_ = {};
  uint64_t version_in_force_ = 0;
  std::optional<uint64_t> first_compacted_step_;
  double step_seconds_ = 0;
  struct Pace {
    double wait_seconds = 0, interval_seconds = 0;  // Smoothed.
  };
  std::map<std::string, Word> words_;                       // By agent.
  std::map<std::string, Pace> paces_;                       // By agent.
  std::map<std::string, std::vector<LinkSnapshot>> links_;  // By agent.
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_PROGRESS_H_
