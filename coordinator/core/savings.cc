#include "coordinator/core/savings.h"

#include <algorithm>
#include <cmath>

namespace pactrain::coordinator {
namespace {

using protocol::Mode;

constexpr double kRecentSeconds = 3600;
constexpr double kAloneWeight = 0.1;  // Of the newest report.
// As Linux has it.
constexpr double kFirstFlightBytes = 14600;
constexpr double kPutOffSeconds = 0.04;  // An acknowledgement.

// Since `before`; a counter that went back has begun anew.
double Grown(uint64_t before, uint64_t now) {
  return static_cast<double>(now < before ? now : now - before);
}

double Seen(double link_seconds, double overlap) {
  return std::max(0.0, link_seconds - overlap);
}

// Of a step's bytes on a link, what they would take if it were endlessly fast,
// at most.
double Latency(double bytes, double rtt) {
  const double flights = std::log2(1 + bytes / kFirstFlightBytes);
  return rtt * std::max(1.0, flights) + kPutOffSeconds;
}

}  // namespace

const char* SavedByName(SavedBy by) {
  switch (by) {
    case SavedBy::kNothing:
      return "";
    case SavedBy::kRates:
      return "rates";
    case SavedBy::kFull:
      return "full";
  }
  return "?";
}

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
  Rates now;
  for (const auto& link : report.links) {
    if (link.goodput_bytes_per_second <= 0) continue;
    now[link.peer_site] = link.goodput_bytes_per_second;
    double& best = best_rates_[link.peer_site];
    best = std::max(best, link.goodput_bytes_per_second);
  }
  // Bytes of steps that are still open go with those that are committed next.
  if (report.step_seconds <= 0) return;
  const Steps steps = TakeSteps(report);
  predicted_.reset();
  if (!mode) in_full_ = false;
  if (steps.count > 0) Learn(report, steps);
  if (!mode || steps.count == 0) return;
  const double wait = report.wait_seconds;
  const double slow_links =
      2 * Seen(LinkSeconds(steps.sent, now), steps.overlap) / steps.count;
  if (*mode == Mode::kFull) {
    full_wait_ = in_full_ && full_wait_ ? std::min(*full_wait_, wait) : wait;
    since_full_ = 0;
  } else if (full_wait_) {
    since_full_ += steps.count * report.interval_seconds;
    const bool recent = since_full_ <= kRecentSeconds;
    const double excused = std::max(*full_wait_, recent ? slow_links : wait);
    Steps counted = steps;
    if (wait > *full_wait_) {
      counted.wait =
          steps.count * (*full_wait_ + std::max(0.0, wait - excused));
    }
    by_mode_[*mode].Add(counted);
  } else {
    before_full_[*mode].Add(steps);
  }
  in_full_ = *mode == Mode::kFull;
  if (report.interval_seconds <= 0 || best_rates_.empty()) return;
  const double alone_now = report.interval_seconds - wait;
  alone_ = alone_ ? *alone_ + kAloneWeight * (alone_now - *alone_) : alone_now;
  const double alone = *alone_;
  const auto seen = [&](const std::map<std::string, double>& bytes) {
    return Seen(LinkSeconds(bytes, best_rates_), steps.overlap) / steps.count;
  };
  predicted_ = Predicted{alone + seen(steps.full), alone + seen(steps.sent),
                         std::nullopt};
  if (!full_wait_) {
    predicted_->full =
        alone + Seen(LeastOfFull(steps), steps.overlap) / steps.count;
    return;
  }
  predicted_->full = std::min(predicted_->full, alone + *full_wait_);
  if (since_full_ <= kRecentSeconds) {
    predicted_->full_at_least = alone + std::max(*full_wait_, slow_links);
  }
}

double Savings::LinkSeconds(const std::map<std::string, double>& bytes,
                            const Rates& rates) {
  double longest = 0;
  for (const auto& [site, count] : bytes) {
    const auto rate = rates.find(site);
    if (rate == rates.end()) continue;
    longest = std::max(longest, count / rate->second);
  }
  return longest;
}

double Savings::Saved(const Steps& steps) const {
  const double predicted =
      Seen(LinkSeconds(steps.full, best_rates_), steps.overlap) -
      Seen(LinkSeconds(steps.sent, best_rates_), steps.overlap);
  return std::min(predicted, steps.count * full_wait_.value_or(0) - steps.wait);
}

void Savings::Steps::Add(const Steps& other) {
  count += other.count;
  wait += other.wait;
  overlap += other.overlap;
  for (const auto& [site, bytes] : other.full) full[site] += bytes;
  for (const auto& [site, bytes] : other.sent) sent[site] += bytes;
}

void Savings::Learn(const protocol::StepReport& report, const Steps& steps) {
  for (const auto& link : report.links) {
    Slope& slope = slopes_[link.peer_site];
    if (link.rtt_seconds > 0 &&
        (slope.rtt == 0 || link.rtt_seconds < slope.rtt)) {
      slope.rtt = link.rtt_seconds;
    }
    const double bytes = steps.sent.at(link.peer_site) / steps.count;
    const double rate = link.goodput_bytes_per_second;
    if (slope.rtt == 0 || bytes == 0 || 2 * bytes < slope.bytes) continue;
    if (bytes > 2 * slope.bytes) slope.rate = 0;  // These show it better.
    if (rate <= slope.rate) continue;
    slope.bytes = std::max(slope.bytes, bytes);
    slope.rate = rate;
    slope.byte_seconds =
        std::max(0.0, 1 / rate - Latency(bytes, slope.rtt) / bytes);
  }
}

double Savings::LeastOfFull(const Steps& steps) const {
  double longest = 0;
  for (const auto& [site, sent] : steps.sent) {
    const auto rate = best_rates_.find(site);
    if (rate == best_rates_.end()) continue;
    const auto slope = slopes_.find(site);
    const double byte_seconds =
        slope == slopes_.end()
            ? 0
            : std::min(slope->second.byte_seconds, 1 / rate->second);
    longest =
        std::max(longest, sent / rate->second +
                              (steps.full.at(site) - sent) * byte_seconds);
  }
  return longest;
}

double Savings::SavedAtLeast(const Steps& steps) const {
  const double least =
      Seen(LeastOfFull(steps), steps.overlap) -
      Seen(LinkSeconds(steps.sent, best_rates_), steps.overlap);
  if (!full_wait_) return least;
  return std::min(least, std::max(0.0, steps.count * *full_wait_ - steps.wait));
}

SavedBy Savings::saved_by() const {
  if (full_wait_) return SavedBy::kFull;
  const bool shown = std::any_of(
      slopes_.begin(), slopes_.end(),
      [](const auto& slope) { return slope.second.byte_seconds > 0; });
  return shown ? SavedBy::kRates : SavedBy::kNothing;
}

std::optional<double> Savings::SavedSeconds() const {
  if (by_mode_.empty() && before_full_.empty()) return std::nullopt;
  double saved = 0;
  for (const auto& [mode, steps] : by_mode_) saved += Saved(steps);
  for (const auto& [mode, steps] : before_full_) saved += SavedAtLeast(steps);
  return saved;
}

}  // namespace pactrain::coordinator
