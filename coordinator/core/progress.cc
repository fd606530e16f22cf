#include "coordinator/core/progress.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace pactrain::coordinator {
namespace {

constexpr double kPaceWeight = 0.3;  // Of the newest report.

}  // namespace

void Progress::Add(const std::string& agent, const std::string& site,
                   const protocol::StepReport& report) {
  if (report.committed_count > 0) {
    committed_step_ = std::max(committed_step_, report.committed_step);
    committed_count_ = std::max(committed_count_, report.committed_count);
  }
  words_[agent] = {report.committed_step, report.committed_count,
                   report.waits_for, report.device_path};
  // Of one agent, so that they add up. One of the release before tells none.
  if (report.failed_attempts >= failed_attempts_ &&
      report.failed_by_cause != protocol::AttemptsByCause{}) {
    failed_by_cause_ = report.failed_by_cause;
  }
  failed_attempts_ = std::max(failed_attempts_, report.failed_attempts);
  if (!first_compacted_step_) {
    first_compacted_step_ = report.first_compacted_step;
  }
  version_in_force_ = std::max(version_in_force_, report.decision_version);
  if (report.step_seconds > 0) step_seconds_ = report.step_seconds;
  if (report.interval_seconds > 0) {
    const auto [it, first] = paces_.try_emplace(agent);
    const double weight = first ? 1 : kPaceWeight;
    Pace& pace = it->second;
    pace.wait_seconds += weight * (report.wait_seconds - pace.wait_seconds);
    pace.interval_seconds +=
        weight * (report.interval_seconds - pace.interval_seconds);
  }
  std::vector<LinkSnapshot>& links = links_[agent];
  links.clear();
  for (const protocol::StepReport::Link& link : report.links) {
    links.push_back({agent, site, link.peer_site, link.sent_bytes,
                     link.received_bytes, link.goodput_bytes_per_second,
                     link.rtt_seconds});
  }
}

std::string Progress::waits_for() const {
  constexpr size_t kShown = 3;
  // Agents whose own trainers are there all name the first of the others.
  std::set<std::string> all;
  for (const auto& [agent, word] : words_) {
    if (word.committed_count == committed_count_ && !word.waits_for.empty()) {
      all.insert(word.waits_for);
    }
  }
  std::string text;
  size_t shown = 0;
  for (const std::string& whom : all) {
    if (shown++ == kShown) {
      absl::StrAppend(&text, ", and ", all.size() - kShown, " more");
      break;
    }
    absl::StrAppend(&text, text.empty() ? "" : ", and ", whom);
  }
  return text;
}

const Progress::Word* Progress::Of(const std::string& agent) const {
  const auto it = words_.find(agent);
  return it == words_.end() ? nullptr : &it->second;
}

std::optional<double> Progress::exchange_share() const {
  std::optional<double> least;
  for (const auto& [agent, pace] : paces_) {
    const double share = pace.wait_seconds / pace.interval_seconds;
    if (!least || share < *least) least = share;
  }
  return least ? std::optional(std::min(1.0, *least)) : std::nullopt;
}

std::vector<LinkSnapshot> Progress::Links() const {
  std::vector<LinkSnapshot> all;
  for (const auto& [agent, links] : links_) {
    all.insert(all.end(), links.begin(), links.end());
  }
  return all;
}

std::vector<NodePath> Progress::Paths() const {
  std::vector<NodePath> all;
  for (const auto& [agent, word] : words_) {
    if (word.device_path) all.push_back({agent, *word.device_path});
  }
  return all;
}

std::vector<AgentPace> Progress::Paces() const {
  std::vector<AgentPace> all;
  for (const auto& [agent, pace] : paces_) {
    all.push_back({agent, pace.wait_seconds, pace.interval_seconds});
  }
  return all;
}

}  // namespace pactrain::coordinator
