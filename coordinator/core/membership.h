// The trainers of a group that wait for a generation, by launch; also those of
// its last generation that have attached again (lineup.h).
//
// Every trainer waits in the launch that started it. A launch is complete when
// all ranks 0..world_size-1 are there; trainers that cannot train together are
// refused with both sides named.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_MEMBERSHIP_H_
#define PACTRAIN_COORDINATOR_CORE_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/agents.h"
#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

struct Candidate {
  protocol::Trainer trainer;
  std::string agent;
  std::string site;
  std::string data_address;  // Of the agent.
};

struct Launch {
  std::string name;
  std::map<uint32_t, Candidate> by_rank;

  uint32_t world_size() const {
    return by_rank.begin()->second.trainer.world_size;
  }
  bool complete() const { return by_rank.size() == world_size(); }
};

// Why the two can never be of one generation; nothing: they can.
std::optional<std::string> WhyApart(const Candidate& a, const Candidate& b);

// Trainers make the name of a launch over several sites of the job and the
// list of sites alone, and begin it with that list: "a:2,b:2 0123456789abcdef".
// So two such names of one job mean two lists.
bool NamesSites(const std::string& launch);

class Membership {
 public:
  // Launches of a group that may wait at once.
  static constexpr size_t kMaxLaunches = protocol::kMaxSites;

  explicit Membership(absl::Duration refusal_time)
      : refusal_time_(refusal_time) {}

  struct Refusal {
    Candidate candidate;
    std::string reason;
  };
  // Adds a trainer; repeating an equal one changes nothing. Returns who is
  // refused: nobody, the newcomer (its rank is taken, a limit), or everyone of
  // its launch (world size or model differ: it could never become complete).
  std::vector<Refusal> Join(const Candidate& candidate, absl::Duration now);

  // Null: no such trainer waits.
  const Candidate* Find(const protocol::Digest& attach_id) const;
  // Who left; nothing: no such trainer waits.
  std::optional<Candidate> Leave(const protocol::Digest& attach_id);
  // Those who left.
  std::vector<Candidate> DropAgent(const std::string& agent);
  // These trainers no longer wait.
  void Remove(const std::vector<Candidate>& trainers);
  // Removes and returns a launch that waits.
  Launch Take(const std::string& launch);
  // As Join() of trainers that differ: none of the launch gets in for a while.
  std::vector<Refusal> Refuse(const std::string& launch,
                              const std::string& reason, absl::Duration now);
  const std::vector<Launch>& launches() const { return launches_; }

  // The launch that has waited longest among the complete ones. Null: none is.
  const Launch* Complete() const;
  bool empty() const { return launches_.empty(); }
  // Nobody waits, and no refusal has to be remembered.
  bool idle(absl::Duration now) const {
    return empty() && !(refused_ && now < refused_->until);
  }
  // Agents with a waiting trainer.
  std::set<std::string> AgentNames() const;
  // "waiting for ranks 2, 3 of 4".
  std::string WaitingReason() const;

 private:
  std::optional<std::string> WhyNot(const Launch& launch,
                                    const Candidate& candidate) const;

  absl::Duration refusal_time_;
  std::vector<Launch> launches_;  // In order of arrival; none is empty.
  // The launch refused last; later trainers of it get the same answer for a
  // while.
  struct RefusedLaunch {
    std::string name;
    std::string reason;
    absl::Duration until;
  };
  std::optional<RefusedLaunch> refused_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_MEMBERSHIP_H_
