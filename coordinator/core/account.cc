#include "coordinator/core/account.h"

#include <algorithm>

namespace pactrain::coordinator {
namespace {

using protocol::Mode;

constexpr double kWeight = 0.3;  // Of the newest interval.

size_t IndexOf(Mode mode) {
  return static_cast<size_t>(std::find(kModes.begin(), kModes.end(), mode) -
                             kModes.begin());
}

// Since `before`; a counter that went back has begun anew.
double Grown(uint64_t before, uint64_t now) {
  return static_cast<double>(now < before ? now : now - before);
}

}  // namespace

void Account::Sent::Spare(double bytes, const protocol::StepReport& report) {
  double all = 0;
  for (const auto& told : report.links) {
    all += Grown(links[told.peer_site].sent, told.sent_bytes);
  }
  for (const auto& told : report.links) {
    Link& link = links[told.peer_site];
    if (all > 0) {
      link.spared += bytes * Grown(link.sent, told.sent_bytes) / all;
    }
    link.sent = told.sent_bytes;
    link.best_rate = std::max(link.best_rate, told.goodput_bytes_per_second);
  }
}

double Account::Sent::SavedSeconds() const {
  double most = 0, least = 0;
  for (const auto& [site, link] : links) {
    if (link.best_rate == 0) continue;
    most = std::max(most, link.spared / link.best_rate);
    least = std::min(least, link.spared / link.best_rate);
  }
  return most > 0 ? most : least;
}

void Account::BeginGeneration() {
  Sum(before_);
  sent_.clear();
  masks_.reset();
}

void Account::Add(const std::string& agent,
                  const protocol::StepReport& report) {
  Sent& sent = sent_[agent];
  sent.Spare(Grown(sent.dense, report.sent_dense_bytes) -
                 Grown(sent.frames, report.sent_bytes),
             report);
  sent.frames = report.sent_bytes;
  sent.kept = report.sent_kept_bytes;
  sent.dense = report.sent_dense_bytes;
  // A mean over a switch is of neither mode.
  const bool of_one_mode =
      mode_ && report.decision_version == version_ && sent.version == version_;
  sent.version = report.decision_version;
  if (!of_one_mode || report.interval_seconds <= 0) return;
  double& interval = before_.mode_interval_seconds[IndexOf(*mode_)];
  interval +=
      (interval == 0 ? 1 : kWeight) * (report.interval_seconds - interval);
}

void Account::Enter(const std::optional<protocol::Decision>& in_force,
                    absl::Duration now) {
  if (mode_) {
    before_.mode_seconds[IndexOf(*mode_)] +=
        absl::ToDoubleSeconds(now - since_);
  }
  since_ = now;
  const std::optional<Mode> next =
      in_force ? std::optional(in_force->mode) : std::nullopt;
  if (mode_ && next) {
    const auto fallback = std::find(kFallbacks.begin(), kFallbacks.end(),
                                    Fallback{*mode_, *next});
    if (fallback != kFallbacks.end()) {
      ++before_.fallbacks[static_cast<size_t>(fallback - kFallbacks.begin())];
    }
  }
  mode_ = next;
  version_ = in_force ? in_force->version : 0;
}

void Account::NoteMasks(const protocol::Digest& masks) {
  if (masks_ && *masks_ != masks) ++before_.mask_changes;
  masks_ = masks;
}

void Account::Sum(AccountSnapshot& total) const {
  double most = 0, least = 0;
  for (const auto& [agent, sent] : sent_) {
    total.sent_bytes += static_cast<double>(sent.frames);
    total.kept_bytes += static_cast<double>(sent.kept);
    total.dense_bytes += static_cast<double>(sent.dense);
    const double saved = sent.SavedSeconds();
    most = std::max(most, saved);
    least = std::min(least, saved);
  }
  total.saved_seconds += most > 0 ? most : least;
}

AccountSnapshot Account::At(absl::Duration now) const {
  AccountSnapshot at = before_;
  Sum(at);
  if (mode_) {
    at.mode_seconds[IndexOf(*mode_)] += absl::ToDoubleSeconds(now - since_);
  }
  return at;
}

}  // namespace pactrain::coordinator
