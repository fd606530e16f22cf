#include "coordinator/core/savings.h"

#include <algorithm>

namespace pactrain::coordinator {
namespace {

using protocol::Mode;

// Since `before`; a counter that went back has begun anew.
double Grown(uint64_t before, uint64_t now) {
  return static_cast<double>(now < before ? now : now - before);
}

double Seen(double link_seconds, double overlap) {
  return std::max(0.0, link_seconds - overlap);
}

}  // namespace

// What the report says of the steps since the last one that was taken.
Savings::Steps Savings::TakeSteps(const protocol::StepReport& report) {
  Steps steps;
  steps.count = Grown(counted_.steps, report.committed_count);
  steps.wait = steps.count * report.wait_seconds;
  steps.overlap =
      steps.count * std::max(0.0, report.step_seconds - report.wait_seconds);
  const double sent = Grown(counted_.frames, report.sent_bytes);
  const double full = Grown(counted_.dense, report.sent_dense_bytes);
  double all = 0;
  for (const auto& link : report.links) {
    all += Grown(counted_.links[link.peer_site], link.sent_bytes);
  }
  for (const auto& link : report.links) {
    const double share =
        all == 0 ? 0
                 : Grown(counted_.links[link.peer_site], link.sent_bytes) / all;
    steps.full[link.peer_site] = full * share;
    steps.sent[link.peer_site] = sent * share;
    counted_.links[link.peer_site] = link.sent_bytes;
  }
  counted_.steps = report.committed_count;
  counted_.frames = report.sent_bytes;
  counted_.dense = report.sent_dense_bytes;
  return steps;
}

void Savings::Add(const protocol::StepReport& report,
                  std::optional<Mode> mode) {
  for (const auto& link : report.links) {
    if (link.goodput_bytes_per_second <= 0) continue;
    double& best = best_rates_[link.peer_site];
    best = std::max(best, link.goodput_bytes_per_second);
  }
  // Bytes of steps that are still open go with those that are committed next.
  if (report.step_seconds <= 0) return;
  const Steps steps = TakeSteps(report);
  predicted_.reset();
  if (!mode || steps.count == 0) return;
  if (*mode == Mode::kFull) {
    const double wait = report.wait_seconds;
    full_wait_ = full_wait_ ? std::min(*full_wait_, wait) : wait;
  } else {
    Steps& sum = by_mode_[*mode];
    sum.count += steps.count;
    sum.wait += steps.wait;
    sum.overlap += steps.overlap;
    for (const auto& [site, bytes] : steps.full) sum.full[site] += bytes;
    for (const auto& [site, bytes] : steps.sent) sum.sent[site] += bytes;
  }
  if (report.interval_seconds <= 0 || best_rates_.empty()) return;
  const double alone = report.interval_seconds - report.wait_seconds;
  const auto seconds = [&](const std::map<std::string, double>& bytes) {
    return alone + Seen(LinkSeconds(bytes), steps.overlap) / steps.count;
  };
  predicted_ = Predicted{seconds(steps.full), seconds(steps.sent)};
}

double Savings::LinkSeconds(const std::map<std::string, double>& bytes) const {
  double longest = 0;
  for (const auto& [site, count] : bytes) {
    const auto rate = best_rates_.find(site);
    if (rate == best_rates_.end()) continue;
    longest = std::max(longest, count / rate->second);
  }
  return longest;
}

double Savings::Saved(const Steps& steps) const {
  const double predicted = Seen(LinkSeconds(steps.full), steps.overlap) -
                           Seen(LinkSeconds(steps.sent), steps.overlap);
  if (!full_wait_) return predicted;
  return std::min(predicted, steps.count * *full_wait_ - steps.wait);
}

double Savings::SavedSeconds() const {
  double saved = 0;
  for (const auto& [mode, steps] : by_mode_) saved += Saved(steps);
  return saved;
}

}  // namespace pactrain::coordinator
