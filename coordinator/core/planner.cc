#include "coordinator/core/planner.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using protocol::Plan;
using Graph = std::map<std::string, std::vector<std::string>>;

Graph ToGraph(const Links& links) {
  Graph graph;
  for (const auto& [a, b] : links) {
    graph[a].push_back(b);
    graph[b].push_back(a);
  }
  return graph;
}

// A walk over the tree from one site: every site with its distance and the
// nearest of `sites` (an index) on the way back to the start.
struct Reached {
  int hops = 0;
  int above = 0;
};

void Walk(const Graph& graph, const std::vector<std::string>& sites,
          const std::string& at, const std::string& from, Reached reached,
          std::map<std::string, Reached>& out) {
  out[at] = reached;
  const auto here = std::find(sites.begin(), sites.end(), at);
  Reached next{reached.hops + 1, reached.above};
  if (here != sites.end()) next.above = static_cast<int>(here - sites.begin());
  for (const std::string& neighbour : graph.at(at)) {
    if (neighbour != from) Walk(graph, sites, neighbour, at, next, out);
  }
}

std::map<std::string, Reached> WalkFrom(const Graph& graph,
                                        const std::vector<std::string>& sites,
                                        int root) {
  std::map<std::string, Reached> reached;
  Walk(graph, sites, sites[root], "", {0, root}, reached);
  return reached;
}

// The site from which the farthest other one is nearest.
int Centre(const Graph& graph, const std::vector<std::string>& sites) {
  std::tuple<int, int, int> best = {0, 0, -1};
  for (int s = 0; s < static_cast<int>(sites.size()); ++s) {
    const auto reached = WalkFrom(graph, sites, s);
    int farthest = 0, total = 0;
    for (const std::string& site : sites) {
      const int hops = reached.at(site).hops;
      farthest = std::max(farthest, hops);
      total += hops;
    }
    const std::tuple<int, int, int> score = {farthest, total, s};
    if (std::get<2>(best) < 0 || score < best) best = score;
  }
  return std::get<2>(best);
}

Plan::Tree LinkTree(const Graph& graph, const std::vector<std::string>& sites,
                    int root) {
  const auto reached = WalkFrom(graph, sites, root);
  Plan::Tree tree;
  for (const std::string& site : sites) {
    tree.parent.push_back(static_cast<uint16_t>(reached.at(site).above));
  }
  return tree;
}

Plan::Tree Star(size_t sites, size_t root) {
  return {std::vector<uint16_t>(sites, static_cast<uint16_t>(root))};
}

// Each chunk in turn to the site whose access link is then done soonest: the
// longest of them is as short as it can be, for the first chunks, too.
std::vector<Plan::Tree> Stars(const std::vector<std::string>& sites,
                              const SiteRates& rates) {
  std::vector<double> rate;
  double fastest = 0;
  for (const auto& [site, r] : rates) fastest = std::max(fastest, r);
  for (const std::string& site : sites) {
    const auto stated = rates.find(site);
    rate.push_back(stated != rates.end() ? stated->second
                   : fastest > 0         ? fastest
                                         : 1);
  }
  const bool alike = std::equal(rate.begin() + 1, rate.end(), rate.begin());
  const size_t turns = alike ? sites.size() : protocol::kMaxSites;
  std::vector<double> load(sites.size(), static_cast<double>(turns));
  const double of_root = static_cast<double>(sites.size()) - 2;
  std::vector<Plan::Tree> stars;
  for (size_t turn = 0; turn < turns; ++turn) {
    size_t root = 0;
    for (size_t s = 1; s < sites.size(); ++s) {
      const double now = (load[s] + of_root) / rate[s];
      if (now < (load[root] + of_root) / rate[root]) root = s;
    }
    load[root] += of_root;
    stars.push_back(Star(sites.size(), root));
  }
  // One site so much faster than the others that it is always the root.
  const bool fixed = std::equal(stars.begin() + 1, stars.end(), stars.begin());
  if (fixed) stars.resize(1);
  return stars;
}

size_t RootOf(const Plan::Tree& tree) {
  size_t root = 0;
  while (tree.parent[root] != root) root = tree.parent[root];
  return root;
}

}  // namespace

absl::Status CheckLinks(const Links& links) {
  std::set<std::string> seen;
  std::set<std::pair<std::string, std::string>> pairs;
  for (const auto& [a, b] : links) {
    RETURN_IF_ERROR(protocol::CheckName("site", a));
    RETURN_IF_ERROR(protocol::CheckName("site", b));
    if (a == b) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", a, "-", b, "' joins a site with itself"));
    }
    if (!pairs.insert(std::minmax(a, b)).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the link '", a, "-", b, "' is there twice; name it once"));
    }
    seen.insert(a);
    seen.insert(b);
  }
  if (seen.size() > protocol::kMaxSites) {
    return absl::InvalidArgumentError(
        absl::StrCat(seen.size(), " sites are named; at most ",
                     protocol::kMaxSites, " are allowed"));
  }
  if (links.empty()) return absl::OkStatus();
  // As many links as sites less one, and all reached: a tree.
  std::set<std::string> reached = {links[0].first};
  for (size_t round = 0; round < links.size(); ++round) {
    for (const auto& [a, b] : links) {
      if (reached.contains(a) || reached.contains(b)) {
        reached.insert(a);
        reached.insert(b);
      }
    }
  }
  if (reached.size() != seen.size() || links.size() != seen.size() - 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        links.size(), " links over ", seen.size(),
        " sites are not one tree (no ring, no part left out); sites on "
        "a common core need no links"));
  }
  return absl::OkStatus();
}

std::optional<std::string> OddSiteRates(const std::vector<std::string>& sites,
                                        const SiteRates& rates) {
  std::vector<std::string> without, unused;
  for (const std::string& site : sites) {
    if (!rates.contains(site)) without.push_back(site);
  }
  for (const auto& [site, rate] : rates) {
    if (!std::binary_search(sites.begin(), sites.end(), site)) {
      unused.push_back(site);
    }
  }
  if (without.empty() || unused.empty()) return std::nullopt;
  return absl::StrCat(
      "--site-rates has no rate for ", absl::StrJoin(without, ", "),
      ", which counts as the fastest, but one for ",
      absl::StrJoin(unused, ", "),
      ", which has no part in this generation; is a name wrong?");
}

absl::Status CheckSiteRates(const SiteRates& rates, const Links& links) {
  if (!rates.empty() && !links.empty()) {
    return absl::InvalidArgumentError(
        "links are given, too: each carries the same along their tree, so "
        "rates change nothing; leave one of both away");
  }
  if (rates.size() > static_cast<size_t>(protocol::kMaxSites)) {
    return absl::InvalidArgumentError(
        absl::StrCat(rates.size(), " sites are named; at most ",
                     protocol::kMaxSites, " are allowed"));
  }
  for (const auto& [site, rate] : rates) {
    RETURN_IF_ERROR(protocol::CheckName("site", site));
  }
  return absl::OkStatus();
}

bool IsLinked(const std::string& site, const Links& links) {
  return std::any_of(links.begin(), links.end(), [&](const auto& link) {
    return link.first == site || link.second == site;
  });
}

std::string LinksText(const Links& links) {
  return absl::StrJoin(links, ", ", absl::PairFormatter("-"));
}

Plan MakePlan(const std::vector<std::string>& sites, const Links& links,
              const SiteRates& rates) {
  PT_CHECK(!sites.empty());
  Plan plan;
  if (sites.size() == 2) {
    plan.swap = true;
    return plan;
  }
  if (!links.empty()) {
    for (const std::string& site : sites) PT_CHECK(IsLinked(site, links));
    const Graph graph = ToGraph(links);
    plan.trees.push_back(LinkTree(graph, sites, Centre(graph, sites)));
    return plan;
  }
  plan.trees = Stars(sites, rates);
  return plan;
}

std::string PlanText(const std::vector<std::string>& sites, const Plan& plan) {
  if (plan.swap) return absl::StrCat(sites[0], " and ", sites[1], " swap");
  if (sites.size() == 1) return "one site: nothing crosses a link";
  if (plan.trees.size() == 1) {
    const Plan::Tree& tree = plan.trees[0];
    std::vector<std::string> edges;
    for (size_t s = 0; s < sites.size(); ++s) {
      if (tree.parent[s] == s) continue;
      edges.push_back(absl::StrCat(sites[s], "->", sites[tree.parent[s]]));
    }
    return absl::StrCat("up to the root ", sites[RootOf(tree)], ": ",
                        absl::StrJoin(edges, ", "));
  }
  std::vector<int> turns(sites.size());
  for (const Plan::Tree& tree : plan.trees) ++turns[RootOf(tree)];
  std::vector<std::string> shares;
  for (size_t s = 0; s < sites.size(); ++s) {
    if (turns[s] == 0) continue;
    shares.push_back(
        absl::StrCat(sites[s], " ", turns[s], "/", plan.trees.size()));
  }
  return absl::StrCat("the root takes turns: ", absl::StrJoin(shares, ", "),
                      " of the chunks");
}

}  // namespace pactrain::coordinator
