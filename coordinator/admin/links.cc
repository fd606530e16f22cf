#include "coordinator/admin/links.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/admin/table.h"

namespace pactrain::coordinator {
namespace {

// Below this share of what is stated, or of what others have, a link is slow:
// several flows share one, and rates are measured in moments of work.
constexpr double kOfStated = 0.5;
constexpr double kOfOthers = 0.25;

using Direction = std::pair<std::string, std::string>;  // From, to.
struct Measured {
  double rate = 0;  // Bytes per second; 0: not measured.
  double rtt = 0;   // Seconds; 0: not measured.
};

class Links {
 public:
  explicit Links(const v1::ListAgentsResponse& answer) : answer_(answer) {
    Measure();
    for (const auto& [direction, measured] : directions_) {
      sent_[direction.first] += measured.rate;
      received_[direction.second] += measured.rate;
    }
  }

  Findings Check() const {
    if (directions_.empty()) {
      return {{"links", Level::kOk, "not measured: no job runs", ""}};
    }
    Findings findings;
    for (const auto& [direction, measured] : directions_) {
      findings.push_back(FindingOf(direction, measured));
    }
    return findings;
  }

 private:
  void Measure() {
    std::set<std::string> agents, sites;
    for (const v1::AgentState& agent : answer_.agents()) {
      if (!agent.connected()) continue;
      agents.insert(agent.agent());
      sites.insert(agent.site());
    }
    // An agent measures for all its jobs together.
    std::map<std::pair<Direction, std::string>, double> rates;
    for (const v1::LinkState& link : answer_.links()) {
      const Direction direction = {link.site(), link.peer_site()};
      if (!agents.contains(link.agent()) || !sites.contains(direction.second)) {
        continue;
      }
      double& rate = rates[{direction, link.agent()}];
      rate = std::max(rate, link.goodput_bytes_per_second());
      double& rtt = directions_[direction].rtt;
      if (link.rtt_seconds() > 0 && (rtt == 0 || link.rtt_seconds() < rtt)) {
        rtt = link.rtt_seconds();
      }
    }
    // Those of a site share its links.
    for (const auto& [key, rate] : rates) directions_[key.first].rate += rate;
  }

  Finding FindingOf(const Direction& direction,
                    const Measured& measured) const {
    const auto& [from, to] = direction;
    Finding finding = {"links", Level::kOk,
                       absl::StrCat(from, " to ", to, ": ",
                                    measured.rate > 0 ? RateText(measured.rate)
                                                      : "rate not measured"),
                       ""};
    if (measured.rtt > 0) {
      absl::StrAppendFormat(&finding.what, ", %.1f ms there and back",
                            measured.rtt * 1e3);
    }
    const auto warn = [&](const std::string& why, const std::string& to_do) {
      finding.level = Level::kWarning;
      absl::StrAppend(&finding.what, "; ", why);
      finding.to_do = to_do;
    };
    if (measured.rate == 0) {
      if (RateOf({to, from}) > 0) {
        warn("the other way has a rate",
             absl::StrCat("see whether pactrain-admin jobs counts steps, and "
                          "the logs of the agents of site ",
                          from));
      }
    } else if (IsSlowerThanStated(direction)) {
      warn(absl::StrCat("--site-rates says ", RateText(Stated(direction))),
           "see what slows it down or else uses it, or correct the "
           "coordinator's --site-rates");
    } else if (const auto others = FasterOthers(measured.rate)) {
      warn(absl::StrCat("most others have ", RateText(*others), " or more"),
           "see what slows it down or else uses it: a step waits for its "
           "slowest link");
    }
    return finding;
  }

  double RateOf(const Direction& direction) const {
    const auto it = directions_.find(direction);
    return it == directions_.end() ? 0 : it->second.rate;
  }

  // Of a site's link to the common core: who is not named is as fast as the
  // fastest.
  double StatedOf(const std::string& site) const {
    const auto it = answer_.site_rates().find(site);
    if (it != answer_.site_rates().end()) return it->second;
    double fastest = 0;
    for (const auto& [name, rate] : answer_.site_rates()) {
      fastest = std::max(fastest, rate);
    }
    return fastest;
  }
  double Stated(const Direction& direction) const {
    return std::min(StatedOf(direction.first), StatedOf(direction.second));
  }

  // Neither what its one end sends to all, nor what its other end receives from
  // all, comes near what that end is said to be able to.
  bool IsSlowerThanStated(const Direction& direction) const {
    const auto& [from, to] = direction;
    return sent_.at(from) < kOfStated * StatedOf(from) &&
           received_.at(to) < kOfStated * StatedOf(to);
  }

  // What at least half of all directions have, if `rate` is slow beside it and
  // nothing is stated.
  std::optional<double> FasterOthers(double rate) const {
    if (!answer_.site_rates().empty()) return std::nullopt;
    std::vector<double> rates;
    for (const auto& [direction, measured] : directions_) {
      if (measured.rate > 0) rates.push_back(measured.rate);
    }
    std::sort(rates.begin(), rates.end());
    const double middle = rates[rates.size() / 2];
    if (rate >= kOfOthers * middle) return std::nullopt;
    return middle;
  }

  const v1::ListAgentsResponse& answer_;
  std::map<Direction, Measured> directions_;
  std::map<std::string, double> sent_, received_;  // By site, to or from all.
};

}  // namespace

Findings CheckLinks(const v1::ListAgentsResponse& answer) {
  return Links(answer).Check();
}

}  // namespace pactrain::coordinator
