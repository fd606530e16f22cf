// Which way sums travel between the sites of a generation.
//
// With links given: one tree, rooted at the site in their middle (a site
// without agents is passed through); each link then carries the sum once in
// each direction, whatever the links' rates. Without: the sites hang on a
// common core, and the chunks take turns among stars, each with another site as
// its root. A root's access link carries more than the others' (of M sites, a
// root of a share w of the chunks has (1 + w (M - 2)) times the sum in each
// direction), so with equal rates all sites take the same share, and else the
// faster ones more. Two sites swap, one site needs no way at all.
//
// Pure functions.
#ifndef PACTRAIN_COORDINATOR_CORE_PLANNER_H_
#define PACTRAIN_COORDINATOR_CORE_PLANNER_H_

#include <map>
#include <optional>
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

// Bytes per second between a site and the common core; the slower direction.
using SiteRates = std::map<std::string, double>;

// InvalidArgument: `links` are given as well, a site is named badly, or there
// are more than a job can have.
absl::Status CheckSiteRates(const SiteRates& rates, const Links& links);

// Says, for people, that one of `sites` has no rate while a rate is of none of
// them, as a wrong name makes it; nothing: not so. Rates of other jobs' sites
// alone are nothing odd.
std::optional<std::string> OddSiteRates(const std::vector<std::string>& sites,
                                        const SiteRates& rates);

// A site that `rates` does not name is as fast as the fastest one there.
//
// REQUIRES: `sites` ascending, not empty; CheckLinks(links) is OK; links name
// all sites or there are none; CheckSiteRates(rates, links) is OK, and they are
// > 0.
protocol::Plan MakePlan(const std::vector<std::string>& sites,
                        const Links& links, const SiteRates& rates = {});

// For people: "a and b swap", "up to the root b: a->b, c->b" or "the root takes
// turns: a 1/3, b 1/3, c 1/3 of the chunks". REQUIRES: a plan for `sites`.
std::string PlanText(const std::vector<std::string>& sites,
                     const protocol::Plan& plan);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_PLANNER_H_
