// Which agents can be in one generation: of any two, one must be able to dial
// the other.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_CORE_REACH_H_
#define PACTRAIN_COORDINATOR_CORE_REACH_H_

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

 private:
  std::set<std::string> blamed_;
  std::map<std::pair<std::string, std::string>, std::string> newcomers_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_REACH_H_
