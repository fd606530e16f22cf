// Which attached models the page shows where there are more than it may.
#ifndef PACTRAIN_COORDINATOR_PAGE_SHOWN_GROUPS_H_
#define PACTRAIN_COORDINATOR_PAGE_SHOWN_GROUPS_H_

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/snapshot.h"

namespace pactrain::coordinator {

// Keeps `most` of them, in their order: those that run, then those that wait,
// then those that ended, the newest end first. Of several alike those that were
// heard of first, so that newcomers hide nothing that runs beside them.
// Returns the others, as GroupId::ToString().
std::set<std::string> CutToShown(size_t most,
                                 std::vector<GroupSnapshot>& groups);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_SHOWN_GROUPS_H_
