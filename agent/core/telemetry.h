// What a group tells the coordinator of its steps: how long they take, how much
// of that is waiting for the exchange, and, of the first steps and of every
// kMeasureInterval-th one, the noise of the exchange.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_TELEMETRY_H_
#define PACTRAIN_AGENT_CORE_TELEMETRY_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "agent/core/status.h"
#include "protocol/control.h"

namespace pactrain::agent {

class Telemetry {
 public:
  // Equal at all agents, so that they measure the same steps.
  static constexpr uint64_t kMeasureInterval = 8;
  // `gradient_steps` of the generation were committed before `step`.
  static bool Measures(uint64_t step, uint64_t gradient_steps) {
    return IsEarly(gradient_steps) || step % kMeasureInterval == 0;
  }
  static bool IsEarly(uint64_t gradient_steps) {
    return gradient_steps < kMeasureInterval;
  }

  // All local trainers have submitted the open step; the first time counts.
  void Complete(absl::Duration now);
  // So long was added up or encoded; what was before Complete() is left out.
  void Summed(absl::Duration time) {
    if (completed_) summed_ += time;
  }
  // All of its results are here, and `heard`, the first bytes of the last who
  // sends some; the newest time counts: an attempt may fail.
  void Exchanged(absl::Duration heard, absl::Duration now) {
    heard_ = heard;
    exchanged_ = now;
  }
  // The open step, begun at `opened`, was committed.
  void Commit(absl::Duration opened, absl::Duration now);
  // It was not, or not as measured.
  void Drop();
  // Keeps the newest few until they are told.
  void Add(const protocol::StepReport::Noise& noise);

  // Since the start.
  const PhaseTimes& phases() const { return phases_; }
  // Means since the last call, and the noise that was not told yet.
  void Fill(protocol::StepReport& report);

 private:
  struct Mean {
    absl::Duration sum;
    int count = 0;
    void Add(absl::Duration value) { sum += value, ++count; }
    double TakeSeconds();  // 0: nothing was added.
  };
  std::optional<absl::Duration> completed_;  // Of the open step.
  std::optional<absl::Duration> exchanged_;
  absl::Duration heard_, summed_;
  std::optional<absl::Duration> last_commit_;
  PhaseTimes phases_;
  Mean step_, wait_, interval_;
  std::deque<protocol::StepReport::Noise> noise_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_TELEMETRY_H_
