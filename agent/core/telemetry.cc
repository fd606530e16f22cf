#include "agent/core/telemetry.h"

#include <algorithm>
#include <utility>

#include "protocol/limits.h"

namespace pactrain::agent {

double Telemetry::Mean::TakeSeconds() {
  const Mean mean = std::exchange(*this, {});
  return mean.count == 0 ? 0 : absl::ToDoubleSeconds(mean.sum) / mean.count;
}

void Telemetry::Complete(absl::Duration now) {
  if (!completed_) completed_ = now;
}

void Telemetry::Commit(absl::Duration opened, absl::Duration now) {
  step_.Add(now - opened);
  if (completed_) wait_.Add(now - *completed_);
  if (last_commit_) interval_.Add(now - *last_commit_);
  const auto add = [this](Phase phase, absl::Duration from, absl::Duration to) {
    phases_[static_cast<size_t>(phase)].Add(absl::ToDoubleSeconds(to - from));
  };
  if (last_commit_ && completed_ && exchanged_) {
    add(Phase::kCompute, *last_commit_, *completed_);
    const absl::Duration begun = std::clamp(heard_, *completed_, *exchanged_);
    const absl::Duration summed =
        begun + std::min(summed_, *exchanged_ - begun);
    add(Phase::kWait, *completed_, begun);
    add(Phase::kSum, begun, summed);
    add(Phase::kLink, summed, *exchanged_);
    add(Phase::kVote, *exchanged_, now);
  }
  last_commit_ = now;
  completed_.reset();
  exchanged_.reset();
  summed_ = {};
}

void Telemetry::Drop() {
  exchanged_.reset();
  completed_.reset();
  last_commit_.reset();
  summed_ = {};
}

void Telemetry::Add(const protocol::StepReport::Noise& noise) {
  noise_.push_back(noise);
  if (noise_.size() > protocol::kMaxNoiseSamples) noise_.pop_front();
}

void Telemetry::Fill(protocol::StepReport& report) {
  report.step_seconds = step_.TakeSeconds();
  report.wait_seconds = wait_.TakeSeconds();
  report.interval_seconds = interval_.TakeSeconds();
  report.noise.assign(noise_.begin(), noise_.end());
  noise_.clear();
}

}  // namespace pactrain::agent
