// Time, chance and the trace of one simulated run: what all its parts share.
//
// Events run in the order of (time, when they were scheduled), so one seed
// gives one run.
#ifndef PACTRAIN_TESTS_SIM_WORLD_H_
#define PACTRAIN_TESTS_SIM_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/random.h"

namespace pactrain::sim {

class World {
 public:
  World(uint64_t seed, std::function<void(const std::string&)> tell)
      : random(seed), tell_(std::move(tell)) {}

  absl::Duration now() const { return now_; }
  void At(absl::Duration time, std::function<void()> run) {
    queue_.push({std::max(time, now_), next_++, std::move(run)});
  }
  void After(absl::Duration delay, std::function<void()> run) {
    At(now_ + delay, std::move(run));
  }
  // False: nothing is left to run.
  bool RunNext();

  // What happened, into the trace hash, and in words if somebody hears them.
  void Note(uint64_t a, uint64_t b = 0, uint64_t c = 0);
  void Say(const std::function<std::string()>& text) const;
  uint64_t trace() const { return trace_; }

  // A broken promise of the system: the run has failed. The first one counts.
  void Fail(const std::string& what);
  const std::string& failure() const { return failure_; }

  // `whom`: in words.
  void CountFault(const std::string& kind, const std::string& whom = "");

  Random random;
  std::map<std::string, uint64_t> faults;
  // A process was stopped for a while: what it does then may be long past.
  bool any_stopped = false;

 private:
  struct Event {
    absl::Duration time;
    uint64_t number;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);
    }
  };

  const std::function<void(const std::string&)> tell_;
  absl::Duration now_;
  uint64_t next_ = 0;
  uint64_t trace_ = 0;
  std::priority_queue<Event> queue_;
  std::string failure_;
};

// Delivers in order: each arrival at or after the one before.
class Lane {
 public:
  absl::Duration Arrival(absl::Duration now, absl::Duration delay) {
    last_ = std::max(last_, now + delay);
    return last_;
  }
  absl::Duration last() const { return last_; }

 private:
  absl::Duration last_;
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_WORLD_H_
