// Who sends gradients that are enormous beside what they were: a rank that
// poisons the sum, or one that has gone wrong.
//
// Of the steps that agents measure (StepReport::Noise) each norm is held
// against the median of those before it: of an agent's own gradients, of its
// site's sum and of the total, as far as the agent forms them. An agent that
// lies of its own shows in the sums of others. The median runs on with what is
// alarmed of, so that a level that stays is not alarmed of for ever.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_NORM_WATCH_H_
#define PACTRAIN_COORDINATOR_CORE_NORM_WATCH_H_

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "protocol/control.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

class NormBand {
 public:
  static constexpr size_t kWindow = 32;  // Norms that the median is of.
  static constexpr size_t kLeast = 8;    // Fewer say nothing.

  // Takes the square of a norm. How many times the median of those before it
  // the norm is, if that is more than `factor`.
  std::optional<double> Add(double squares, double factor);
  size_t size() const { return squares_.size(); }

 private:
  std::deque<double> squares_;  // Oldest first.
};

class NormWatch {
 public:
  // An agent is told of once in so long, however often it is alarmed of.
  static constexpr absl::Duration kTellEvery = absl::Minutes(10);

  struct Alarm {
    std::string text;   // Whose norm, of which step, and how large it is.
    bool told = false;  // Already, of this agent.
  };
  // What `member` measured of one step; nothing: it is as ever. `factor`: above
  // 1; 0: nothing is.
  std::optional<Alarm> Add(const protocol::Member& member,
                           const protocol::StepReport::Noise& sample,
                           double factor, absl::Duration now);

  // A generation begins; `anew`: with a new model, whose norms are others.
  void Begin(const std::vector<protocol::Member>& members, bool anew);

 private:
  struct Agent {
    NormBand own, site, total;
    absl::Duration tell_again = -absl::InfiniteDuration();
  };
  std::map<std::string, Agent> agents_;  // Of the generation.
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_NORM_WATCH_H_
