// Which agents can be in one generation: of any two, one must be able to dial
// the other.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_CORE_REACH_H_
#define PACTRAIN_COORDINATOR_CORE_REACH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/membership.h"

namespace pactrain::coordinator {

// Why the agents of two trainers could never exchange, naming both; nothing:
// they can, as far as their addresses tell.
std::optional<std::string> WhyNeitherDials(const Candidate& a,
                                           const Candidate& b);

// Who is to blame for a generation that ended because two of its agents never
// had a connection: of an agent that was in the job before and one that came
// with this generation the latter; of two that came both, unless a third is to
// blame for either.
// Of two agents, in order.
using AgentPair = std::pair<std::string, std::string>;

class Unreached {
 public:
  struct Blame {
    std::string agent;
    std::string why;
  };
  // `agent` did not reach the others, and `why` is the end of the generation.
  // Returns who is to blame for sure.
  std::vector<Blame> Note(
      const std::string& agent, const std::vector<std::string>& others,
      const std::string& why,
      const std::function<bool(const std::string& agent)>& was_before);
  // All have said whom they did not reach. Returns the rest.
  std::vector<Blame> Settle();
  // Pairs that both were in the job before, and why the generation ended.
  const std::map<AgentPair, std::string>& members() const { return members_; }

 private:
  std::set<std::string> blamed_;
  std::map<AgentPair, std::string> newcomers_;
  std::map<AgentPair, std::string> members_;
};

// So many generations one after the other may end since two members do not
// reach each other.
inline constexpr int kMaxApart = 3;

// What an agent's ranks bring to a job.
struct Weight {
  std::pair<uint64_t, uint64_t> reached;  // The newest state: a step.
  size_t ranks = 0;
};
// Which agents have to go so that all others reach each other, and for each a
// pair of `cut` that shows why. Stays the side with the newest state, of those
// the one with most ranks.
std::map<std::string, AgentPair> SmallerSides(
    const std::map<AgentPair, std::string>& cut,
    const std::map<std::string, Weight>& agents);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_REACH_H_
