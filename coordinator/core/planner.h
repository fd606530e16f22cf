// Which way sums travel between the sites of a generation.
//
// With links given: one tree, rooted at the site in their middle (a site
// without agents is passed through). Without: the sites hang on a common core,
// and the chunks take turns among one star per site, so that no access link
// carries more than its share. Two sites swap, one site needs no way at all.
//
// Pure functions.
#ifndef PACTRAIN_COORDINATOR_CORE_PLANNER_H_
#define PACTRAIN_COORDINATOR_CORE_PLANNER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

using Links = std::vector<std::pair<std::string, std::string>>;

// InvalidArgument: the links hold a ring, fall apart, name a site badly or are
// more than a job can have.
absl::Status CheckLinks(const Links& links);

// Is `site` an end of a link?
bool IsLinked(const std::string& site, const Links& links);
std::string LinksText(const Links& links);  // "a-b, b-c".

// REQUIRES: `sites` ascending, not empty; CheckLinks(links) is OK; links name
// all sites or there are none.
protocol::Plan MakePlan(const std::vector<std::string>& sites,
                        const Links& links);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_PLANNER_H_
