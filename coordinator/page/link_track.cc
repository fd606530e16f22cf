#include "coordinator/page/link_track.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <vector>

#include "coordinator/page/job_track.h"

namespace pactrain::coordinator {
namespace {

// As link:pactrain_awaited:bool of deploy/prometheus/rules.yml.
constexpr double kAwaitedShare = 0.25;

struct Measured {
  double rate = 0, rtt = 0;
  uint64_t sent = 0;
  bool awaited = false;
};

std::map<Direction, Measured> MeasuredOf(const StateSnapshot& snapshot) {
  // By agent and direction, each once for all jobs.
  using Key = std::tuple<std::string_view, std::string_view, std::string_view>;
  std::map<Key, Measured> by_agent;
  for (const GroupSnapshot& group : snapshot.groups) {
    if (group.phase != GroupPhase::kRunning || !group.generation) continue;
    const std::set<Direction> edges = EdgesOf(*group.generation);
    const bool awaited = group.exchange_share.value_or(0) > kAwaitedShare;
    for (const LinkSnapshot& link : group.links) {
      if (link.site == link.peer_site) continue;
      Measured& m = by_agent[{link.agent, link.site, link.peer_site}];
      m.rate = std::max(m.rate, link.goodput_bytes_per_second);
      m.rtt = std::max(m.rtt, link.rtt_seconds);
      m.sent = std::max(m.sent, link.sent_bytes);
      m.awaited |=
          awaited && edges.contains(std::minmax(link.site, link.peer_site));
    }
  }
  std::map<Direction, Measured> links;
  for (const auto& [key, m] : by_agent) {
    Measured& link =
        links[{std::string(std::get<1>(key)), std::string(std::get<2>(key))}];
    link.rate += m.rate;
    link.sent += m.sent;
    link.rtt = std::max(link.rtt, m.rtt);
    link.awaited |= m.awaited;
  }
  return links;
}

}  // namespace

std::set<Direction> EdgesOf(const protocol::Generation& generation) {
  const std::vector<std::string>& sites = generation.sites;
  std::set<Direction> edges;
  if (generation.plan.swap && sites.size() == 2) {
    edges.insert({sites[0], sites[1]});
  }
  for (const protocol::Plan::Tree& tree : generation.plan.trees) {
    for (size_t s = 0; s < tree.parent.size() && s < sites.size(); ++s) {
      if (tree.parent[s] == s || tree.parent[s] >= sites.size()) continue;
      edges.insert(std::minmax(sites[s], sites[tree.parent[s]]));
    }
  }
  return edges;
}

double LinkTrack::Link::best_rate() const {
  float best = 0;
  for (const Point& point : points) best = std::max(best, point.rate);
  return static_cast<double>(best);
}

double LinkTrack::Link::median_rate() const {
  std::vector<float> rates;
  for (const Point& point : points) {
    if (point.rate > 0) rates.push_back(point.rate);
  }
  if (rates.empty()) return 0;
  const auto middle =
      rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return static_cast<double>(*middle);
}

double LinkTrack::Link::use() const {
  const double best = best_rate();
  return best > 0 ? std::min(1.0, points.back().used / best) : 0;
}

void LinkTrack::Observe(const StateSnapshot& snapshot, double now) {
  hidden_ = 0;
  for (auto& [direction, link] : links_) link.seen = false;
  for (const auto& [direction, m] : MeasuredOf(snapshot)) {
    auto it = links_.find(direction);
    if (it == links_.end()) {
      if (links_.size() >= kMaxLinks) {
        ++hidden_;
        continue;
      }
      it = links_.emplace(direction, Link()).first;
    }
    Link& link = it->second;
    link.seen = true;
    link.rtt = m.rtt;
    link.awaited = m.awaited;
    if (!link.points.empty() &&
        now - link.points.back().at < absl::ToDoubleSeconds(kPointEvery)) {
      continue;
    }
    Point point = {now, static_cast<float>(m.rate), 0};
    if (!link.points.empty() && m.sent >= link.sent) {
      point.used = static_cast<float>(static_cast<double>(m.sent - link.sent) /
                                      (now - link.points.back().at));
    }
    link.sent = m.sent;
    link.points.push_back(point);
    if (link.points.size() > kMaxPoints) link.points.pop_front();
  }
  std::erase_if(links_, [&](const auto& entry) {
    const Link& link = entry.second;
    return !link.seen &&
           now - link.points.back().at > absl::ToDoubleSeconds(kHistory);
  });
}

}  // namespace pactrain::coordinator
