// Whether ranks that have come equally far hold equal parameters, by what they
// say of them.
//
// Equal steps of one lineage make equal parameters, bit by bit. So where two
// differ, a node computes wrongly or an agent says what is not so. Agents
// count, since each speaks for all of its ranks; among the ranks of the same
// agents these count.
//
// Pure functions of values.
#ifndef PACTRAIN_COORDINATOR_CORE_LIKENESS_H_
#define PACTRAIN_COORDINATOR_CORE_LIKENESS_H_

#include <string>
#include <vector>

#include "coordinator/core/membership.h"
#include "coordinator/core/testimony.h"

namespace pactrain::coordinator {

struct Likeness {
  bool refuted = false;   // More hold one other digest than its own.
  bool disputed = false;  // As many do.
  std::string text;       // Who holds which; empty: all hold the same.
};

// Of a candidate beside all that are compared, itself among them. Who says
// nothing of its parameters is not judged.
Likeness LikenessOf(const Candidate& candidate,
                    const std::vector<const Candidate*>& all,
                    const Testimony& testimony);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_LIKENESS_H_
