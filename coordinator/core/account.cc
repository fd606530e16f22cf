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

}  // namespace

absl::string_view FallbackCauseName(FallbackCause cause) {
  switch (cause) {
    case FallbackCause::kMasks:
      return "masks";
    case FallbackCause::kRisk:
      return "risk";
    case FallbackCause::kPin:
      return "pin";
  }
  return "?";
}

void Account::BeginGeneration() {
  Sum(before_);
  began_here_ = true;
  sent_.clear();
  masks_.reset();
}

void Account::Add(const std::string& agent,
                  const protocol::StepReport& report) {
  const auto [it, first] = sent_.try_emplace(agent);
  Sent& sent = it->second;
  sent.frames = static_cast<double>(report.sent_bytes);
  sent.kept = static_cast<double>(report.sent_kept_bytes);
  sent.dense = static_cast<double>(report.sent_dense_bytes);
  if (first && !began_here_) {
    sent.frames_before = sent.frames;
    sent.kept_before = sent.kept;
    sent.dense_before = sent.dense;
    sent.savings.CountFrom(report);
  }
  // A mean over a switch is of neither mode.
  const bool of_one_mode =
      mode_ && report.decision_version == version_ && sent.version == version_;
  sent.version = report.decision_version;
  sent.savings.Add(report, of_one_mode ? mode_ : std::nullopt);
  if (!of_one_mode || report.interval_seconds <= 0) return;
  double& interval = before_.mode_interval_seconds[IndexOf(*mode_)];
  interval +=
      (interval == 0 ? 1 : kWeight) * (report.interval_seconds - interval);
}

void Account::Enter(const std::optional<protocol::Decision>& in_force,
                    const std::optional<Pin>& pin, absl::Duration now) {
  if (mode_) {
    before_.mode_seconds[IndexOf(*mode_)] +=
        absl::ToDoubleSeconds(now - since_);
  }
  since_ = now;
  if (in_force && mode_ && in_force->version == version_) return;
  const std::optional<Mode> next =
      in_force ? std::optional(in_force->mode) : std::nullopt;
  const bool pinned = pin && in_force && pin->IsMetBy(*in_force);
  const bool masked = in_force && !in_force->mask_digest.empty();
  if (mode_ && next) {
    // Also what comes after a pin that was taken back is the pin's.
    const bool by_pin = pinned || (met_ && met_ != pin);
    const bool by_masks = *mode_ == Mode::kCompacted || (masked_ && !masked);
    const FallbackCause cause = by_pin     ? FallbackCause::kPin
                                : by_masks ? FallbackCause::kMasks
                                           : FallbackCause::kRisk;
    const auto fallback = std::find(kFallbacks.begin(), kFallbacks.end(),
                                    Fallback{*mode_, *next, cause});
    if (fallback != kFallbacks.end()) {
      ++before_.fallbacks[static_cast<size_t>(fallback - kFallbacks.begin())];
    }
  }
  mode_ = next;
  masked_ = masked;
  met_ = pinned ? pin : std::nullopt;
  version_ = in_force ? in_force->version : 0;
}

void Account::NoteMasks(const protocol::Digest& masks, uint64_t step) {
  if (masks_ && masks_->digest == masks) return;
  if (masks_) ++before_.mask_changes;
  masks_ = Masks{masks, step};
}

void Account::Sum(AccountSnapshot& total) const {
  std::optional<double> most;
  total.saved_by = SavedBy::kNothing;
  for (const auto& [agent, sent] : sent_) {
    total.sent_bytes += sent.frames - sent.frames_before;
    total.kept_bytes += sent.kept - sent.kept_before;
    total.dense_bytes += sent.dense - sent.dense_before;
    total.saved_by = std::max(total.saved_by, sent.savings.saved_by());
    most = std::max(most, sent.savings.SavedSeconds());
  }
  total.saved_seconds += most.value_or(0);
}

AccountSnapshot Account::At(absl::Duration now, uint64_t step) const {
  AccountSnapshot at = before_;
  Sum(at);
  if (masks_ && !masks_->digest.empty() && step > masks_->since) {
    at.mask_unchanged_steps = step - masks_->since;
  }
  if (!mode_) return at;
  at.mode_seconds[IndexOf(*mode_)] += absl::ToDoubleSeconds(now - since_);
  double& full = at.mode_predicted_seconds[IndexOf(Mode::kFull)];
  double& in_force = at.mode_predicted_seconds[IndexOf(*mode_)];
  for (const auto& [agent, sent] : sent_) {
    const auto& predicted = sent.savings.predicted();
    if (!predicted) continue;
    full = std::max(full, predicted->full);
    in_force = std::max(in_force, predicted->sent);
    at.full_at_least_seconds = std::max(at.full_at_least_seconds,
                                        predicted->full_at_least.value_or(0));
  }
  return at;
}

}  // namespace pactrain::coordinator
