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

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/weakened.h"
#include "coordinator/core/agents.h"
#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

struct Candidate {
  protocol::Trainer trainer;
  std::string agent;
  std::string site;
  std::string data_address;  // Of the agent.
  bool proven = false;       // As TrainerJoined has it.
};

// Else it is a newcomer, or has not got the state of the last generation.
inline bool HasState(const Candidate& candidate) {
  return !candidate.trainer.lineage.id.empty();
}

// No job forms so many generations.
inline constexpr uint64_t kMaxNumber = uint64_t{1} << 48;
// The generation that the lineage of its state began with; 0: the id tells
// none.
inline uint64_t BegunWith(const protocol::Trainer& trainer) {
  return trainer.lineage.id.lo < kMaxNumber ? trainer.lineage.id.lo : 0;
}

struct Launch {
  std::string name;
  std::map<uint32_t, Candidate> by_rank;

  uint32_t world_size() const {
    return by_rank.begin()->second.trainer.world_size;
  }
  bool complete() const { return by_rank.size() == world_size(); }
  // All of it want the job to begin anew, and hold no state of it.
  bool replaces() const {
    return std::all_of(by_rank.begin(), by_rank.end(), [](const auto& entry) {
      return entry.second.trainer.replace &&
             (!HasState(entry.second) || PT_WEAKENED(ReplacesAtRegroups));
    });
  }
};

// All that wait in these, by launch and rank.
std::vector<const Candidate*> AllOf(const std::vector<Launch>& launches);

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
  // As Join() of trainers that differ: none of the launch that waits gets in,
  // nor one that comes later and was never in the job, for a while.
  std::vector<Refusal> Refuse(const std::string& launch,
                              const std::string& reason, absl::Duration now);
  // The same, less those that wait and have been in the job.
  std::vector<Refusal> RefuseNewcomers(const std::string& launch,
                                       const std::string& reason,
                                       absl::Duration now);
  // Of launches with a newcomer at this agent the same, for a while: as long as
  // it says that it is reached at `data_address`.
  void RefuseAgent(const std::string& agent, const std::string& data_address,
                   const std::string& reason, absl::Duration now);
  const std::vector<Launch>& launches() const { return launches_; }

  // The launch that has waited longest among the complete ones. Null: none is.
  const Launch* Complete() const;
  // The same of those that replace the job.
  const Launch* Replacing() const;
  bool empty() const { return launches_.empty(); }
  // Nobody waits, and no refusal has to be remembered.
  bool idle(absl::Duration now) const {
    return empty() && std::all_of(refused_.begin(), refused_.end(),
                                  [&](const Refused& refused) {
                                    return now >= refused.until;
                                  });
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
  // Launches and agents refused a while ago; the newest last.
  struct Refused {
    std::string launch;        // Or
    std::string agent;         // all at this one, if it is reached
    std::string data_address;  // there.
    std::string reason;
    absl::Duration until;
  };
  void Remember(Refused refused, absl::Duration now);
  // They no longer wait.
  std::vector<Refusal> TakeNewcomers(const std::string& launch,
                                     const std::string& reason);

  std::vector<Refused> refused_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_MEMBERSHIP_H_
