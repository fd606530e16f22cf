// What agents have said of how far a generation came, and whom that
// contradicts: a member that lies about its own state, which its seat's secret
// does not show.
//
// A step is committed by the votes of all ranks' agents, and no rank submits
// the next one before it has applied that. So what an agent says of its own
// ranks bounds all others, and what two honest agents say never contradicts:
//   - once it has lost one of them, it votes no more: nobody can have committed
//     a step after the last one that it voted for;
//   - a rank that comes back has committed so many gradient steps: nobody can
//     have committed two more, nor one if it never got that generation's state.
// Steps that did not come about have numbers, too, so a rank's own next step
// bounds none.
//
// Of the newest generations, as long as this process lives: what came about
// while the coordinator was away is believed as it is claimed.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_TESTIMONY_H_
#define PACTRAIN_COORDINATOR_CORE_TESTIMONY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/agents.h"
#include "coordinator/core/lineup.h"
#include "coordinator/core/membership.h"
#include "protocol/control.h"

namespace pactrain::coordinator {

class Testimony {
 public:
  void Begin(const protocol::Generation& generation);
  // An agent's last word of a generation: it has lost a trainer of it.
  void NoteReport(const Agent& agent, const protocol::StepReport& report);
  // Of a rank that has attached again.
  void NoteClaim(const Candidate& candidate);
  // Nobody asks it any more.
  void Forget(const std::string& agent);

  // Others' words on a claim of an agent. Agents count, since each speaks for
  // all of its ranks.
  struct Words {
    std::vector<std::string> against;  // Names.
    size_t with = 1;                   // Itself, and who says the same.
    bool disputed() const { return !against.empty() && against.size() >= with; }
    bool refuted() const { return against.size() > with; }
  };
  Words On(const Candidate& candidate) const;
  // The generation of the candidate's seat; nothing: it is not remembered.
  struct Began {
    Reached state;
    bool has_donor = false;  // Else a lineage began with it.
  };
  std::optional<Began> BeganWith(const Candidate& candidate) const;
  // That its ranks in this generation have come so far.
  Words On(const std::string& agent, uint64_t generation,
           const Reached& reached) const;

 private:
  static constexpr uint64_t kAny = std::numeric_limits<uint64_t>::max();
  struct Word {
    Reached most = {kAny, kAny};  // That anybody can have.
    uint64_t committed = 0;       // By its own ranks.
  };
  struct Course {
    uint64_t generation = 0;
    protocol::Lineage lineage;  // As it began.
    uint64_t base_step = 0;
    bool has_donor = false;
    std::set<protocol::Digest> attach_ids;
    std::map<std::string, protocol::Digest> incarnations;
    std::map<std::string, Word> words;  // By agent.
  };
  // Null: nothing is known of that seat's generation.
  const Course* Find(const Candidate& candidate) const;
  const Course* Find(uint64_t generation) const;

  std::deque<Course> courses_;  // Newest first, at most kMaxHistory.
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_TESTIMONY_H_
