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

// How long the links of one report take for each byte that its agent sends: its
// bytes are taken to be spread over them as all of that agent's are.
double SecondsPerByte(const protocol::StepReport& report,
                      std::map<std::string, uint64_t>& before) {
  double all = 0, slowest = 0;
  for (const auto& link : report.links) {
    const double bytes = Grown(before[link.peer_site], link.sent_bytes);
    before[link.peer_site] = link.sent_bytes;
    all += bytes;
    if (link.goodput_bytes_per_second > 0) {
      slowest = std::max(slowest, bytes / link.goodput_bytes_per_second);
    }
  }
  return all > 0 ? slowest / all : 0;
}

}  // namespace

void Account::BeginGeneration() {
  Sum(before_);
  sent_.clear();
  masks_.reset();
}

void Account::Add(const std::string& agent,
                  const protocol::StepReport& report) {
  Sent& sent = sent_[agent];
  const double per_byte = SecondsPerByte(report, sent.links);
  sent.saved_seconds += per_byte * (Grown(sent.dense, report.sent_dense_bytes) -
                                    Grown(sent.frames, report.sent_bytes));
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
    most = std::max(most, sent.saved_seconds);
    least = std::min(least, sent.saved_seconds);
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
