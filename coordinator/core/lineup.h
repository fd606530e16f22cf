// Who forms a group's next generation, with which ranks and from whose state.
//
// Where ranks come and go, the trainers of a generation that ended attach again
// and say how far their state has come; that is all the coordinator goes by.
// Those of the job's lineage who have come farthest are current, whatever
// generation they got that state in, and the others take it from one of them. A
// trainer that committed a step has it in its state, so no committed step is
// lost as long as one that has it returns.
//
// Pure functions of values.
#ifndef PACTRAIN_COORDINATOR_CORE_LINEUP_H_
#define PACTRAIN_COORDINATOR_CORE_LINEUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/journal_record.h"
#include "coordinator/core/membership.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

// What is left of the last generation.
struct Remains {
  uint64_t generation = 0;
  protocol::Digest lineage;
  protocol::OnShrink on_shrink = protocol::OnShrink::kPause;
  size_t ranks = 0;     // That it had.
  size_t detached = 0;  // By their own will: nobody has to take their place.
  size_t alive = 0;     // They have not attached again yet.
  size_t unknown = 0;   // They may be alive: their agent is away for a little.
  // Of earlier generations, too: their launch is complete without them.
  RanksByLaunch detached_of;
  // Ranks that pause waits for. Nothing: those it had, less the detached.
  std::optional<size_t> needed = {};
  // Words for who has been away longer than he is waited for; empty: nobody.
  std::string unseen = {};
};

struct Lineup {
  std::vector<Candidate> trainers;  // By rank.
  std::optional<uint32_t> donor;    // Nothing: a new job.
  std::vector<uint32_t> needs_state;
  uint64_t next_step = 0;  // The greatest that a trainer named.
  // The donor's. Without one its id is still to be made.
  protocol::Lineage lineage;
};

// A complete launch as a new job, with the ranks that its trainers asked for.
Lineup LineupOf(const Launch& launch);

// The next generation from those that wait; or what it waits for. REQUIRES:
// somebody with a state of `remains.lineage` waits.
struct NextLineup {
  std::optional<Lineup> lineup;
  std::string waiting;
};
NextLineup MakeNextLineup(const std::vector<Launch>& waiting,
                          const Remains& remains);

// Somebody of the last generation may still come, and is to be waited for.
bool IsAwaited(const Remains& remains);
// How far a state has come: gradient steps, and the step that comes next, which
// also tells broadcasts between them.
using Reached = std::pair<uint64_t, uint64_t>;
Reached ReachedBy(const Candidate& candidate);
// The newest state of that lineage among those that wait; nothing: nobody has
// one.
std::optional<Reached> NewestReturned(const std::vector<Launch>& waiting,
                                      const protocol::Digest& lineage);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_LINEUP_H_
