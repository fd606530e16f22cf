#include "coordinator/core/norm_watch.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/rank_list.h"

namespace pactrain::coordinator {
namespace {

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<double> NormBand::Add(double squares, double factor) {
  std::optional<double> times;
  if (squares_.size() >= kLeast) {
    const double median = MedianOf({squares_.begin(), squares_.end()});
    // Where there was nothing before, any norm is infinitely many times it.
    const double ratio = std::sqrt(squares / median);
    if (median > 0 && ratio > factor) times = ratio;
  }
  squares_.push_back(squares);
  if (squares_.size() > kWindow) squares_.pop_front();
  return times;
}

std::optional<NormWatch::Alarm> NormWatch::Add(
    const protocol::Member& member, const protocol::StepReport::Noise& sample,
    double factor, absl::Duration now) {
  if (factor == 0) return std::nullopt;
  Agent& agent = agents_[member.agent];
  const auto own = agent.own.Add(sample.local, factor);
  const auto site = agent.site.Add(sample.site, factor);
  const auto total = agent.total.Add(sample.total, factor);
  if (!own && !site && !total) return std::nullopt;
  const std::string who =
      own ? absl::StrCat("the gradients of ", RankList(member.ranks),
                         " (agent '", member.agent, "', site '", member.site,
                         "')")
          : absl::StrCat("the sum ",
                         site ? absl::StrCat("of site '", member.site, "'")
                              : "of all sites",
                         ", as agent '", member.agent, "' forms it,");
  const double squares = own ? sample.local : site ? sample.site : sample.total;
  Alarm alarm;
  alarm.text = absl::StrFormat(
      "%s at step %d: norm %.3g, %.3g times the median of the steps before",
      who, sample.step, std::sqrt(squares),
      own    ? *own
      : site ? *site
             : *total);
  alarm.told = now < agent.tell_again;
  if (!alarm.told) agent.tell_again = now + kTellEvery;
  return alarm;
}

void NormWatch::Begin(const std::vector<protocol::Member>& members, bool anew) {
  if (anew) return agents_.clear();
  std::set<std::string> names;
  for (const protocol::Member& member : members) names.insert(member.agent);
  std::erase_if(
      agents_, [&](const auto& entry) { return !names.contains(entry.first); });
}

}  // namespace pactrain::coordinator
