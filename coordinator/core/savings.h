// What one agent's links would have taken in FULL, against what they took.
//
//   L(bytes)  = of its links the longest bytes / rate; the best rate that was
//               measured on each counts, since few bytes at a time show none:
//               round trips are most of their time. A link without a measured
//               rate counts for nothing. An agent's bytes are taken to be
//               spread over its links as all that it sends.
//   seen(b)   = max(0, L(b) - o), o: from a step's first submit to the last,
//               which is as long as links work behind computing.
//   W         = the least mean wait of a step in the newest FULL steps;
//   w         = the mean wait of a step, but of what is above W no more than
//               counts against compression: nothing if FULL was measured more
//               than an hour of steps ago, else what is above twice the time
//               that links as fast as now need for the sent bytes (there and
//               back; FULL sends no fewer).
//   saved     = the smaller of seen(FULL's bytes) - seen(sent bytes) and
//               steps * (W - w), by mode; below 0: it cost more than FULL.
//   Few bytes at a time show round trips and not a rate. So of steps before a
//   FULL one was measured no more counts than what is sure:
//   slope     = (b / rate - latency) / b, at least 0 and at most 1 / the best
//               rate, of the best rate in the steps of most bytes (from half of
//               the most on); latency = a round trip for each doubling of what
//               TCP begins with, and one acknowledgement that is put off.
//   least     = of all links the longest L(sent) + (FULL's - sent) * slope.
//   saved     = seen(least) - seen(L(sent)); once FULL was measured no more
//               than steps * (W - wait), which is no loss of these steps.
//   alone     = interval - wait, as a moving mean: of all agents' newest ones
//               the greatest would always be one that was slow by chance.
//   predicted = alone + seen(bytes of a step); in FULL no more than alone + W,
//               and before it was measured alone + seen(least).
//   at least  = what FULL takes: alone + the greater of W and twice
//               the time that links need now for the sent bytes; not known if
//               FULL was measured more than an hour of steps ago.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_SAVINGS_H_
#define PACTRAIN_COORDINATOR_CORE_SAVINGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "protocol/control.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

// What seconds saved are known by; more is better.
enum class SavedBy { kNothing, kRates, kFull };
const char* SavedByName(SavedBy by);  // "", "rates", "full".

class Savings {
 public:
  // `mode`: what all steps since the last report were in; nothing: they were in
  // several, and count for nothing.
  void Add(const protocol::StepReport& report,
           std::optional<protocol::Mode> mode);

  // Steps up to this report count for nothing.
  void CountFrom(const protocol::StepReport& report) { TakeSteps(report); }

  // Nothing: of no step.
  std::optional<double> SavedSeconds() const;
  // By rates: no FULL step was measured, and they show what it takes at least.
  SavedBy saved_by() const;

  // Of a step, by the newest report; nothing: not known.
  struct Predicted {
    double full = 0;
    double sent = 0;  // In the mode of that report.
    std::optional<double> full_at_least;
  };
  const std::optional<Predicted>& predicted() const { return predicted_; }

 private:
  // Of steps in one mode.
  struct Steps {
    double count = 0;
    double wait = 0, overlap = 0;              // Seconds.
    std::map<std::string, double> full, sent;  // Bytes by peer site.
    void Add(const Steps& other);
  };
  // As counted so far.
  struct Counted {
    uint64_t steps = 0, frames = 0, dense = 0;
    std::map<std::string, uint64_t> links;
  };
  Steps TakeSteps(const protocol::StepReport& report);
  using Rates = std::map<std::string, double>;  // By peer site.
  static double LinkSeconds(const std::map<std::string, double>& bytes,
                            const Rates& rates);
  double Saved(const Steps& steps) const;
  void Learn(const protocol::StepReport& report, const Steps& steps);
  double LeastOfFull(const Steps& steps) const;  // Seconds of links.
  double SavedAtLeast(const Steps& steps) const;

  Counted counted_;
  Rates best_rates_;  // Measured ones.
  // What a link shows of its bytes by themselves.
  struct Slope {
    double bytes = 0;  // The most in a step of this group.
    double rate = 0;   // The best one of such steps.
    double rtt = 0;    // The least one; 0: not measured.
    double byte_seconds = 0;
  };
  std::map<std::string, Slope> slopes_;      // By peer site.
  std::map<protocol::Mode, Steps> by_mode_;  // But for FULL.
  std::map<protocol::Mode, Steps> before_full_;
  std::optional<double> full_wait_;  // Seconds of a step.
  bool in_full_ = false;             // As of the last report.
  double since_full_ = 0;            // Seconds of steps.
  std::optional<double> alone_;
  std::optional<Predicted> predicted_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_SAVINGS_H_
