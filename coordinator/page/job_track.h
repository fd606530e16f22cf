// An hour of one attached model's history, from successive snapshots.
//
// What was between two snapshots shows as their difference. All lists have a
// bound; the oldest goes first.
//
// Pure: time comes as an argument. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_PAGE_JOB_TRACK_H_
#define PACTRAIN_COORDINATOR_PAGE_JOB_TRACK_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "coordinator/core/snapshot.h"

namespace pactrain::coordinator {

inline constexpr absl::Duration kHistory = absl::Hours(1);
inline constexpr absl::Duration kPointEvery = absl::Seconds(6);
inline constexpr absl::Duration kPaceWindow = absl::Minutes(10);
inline constexpr size_t kMaxPoints = 600;     // kHistory / kPointEvery.
inline constexpr size_t kMaxEntries = 60;     // Of each list but points.
inline constexpr size_t kMaxEntryText = 400;  // Bytes.

inline constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

class JobTrack {
 public:
  // What was measured at a moment; kUnknown: not.
  struct Point {
    double at = 0;         // Seconds, as `now`.
    float dense_rate = 0;  // Bytes per second since the point before, as FULL
    float wire_rate = 0;   // had them; and as sent.
    float measured = kUnknown;   // Seconds of a step in the mode in force.
    float predicted = kUnknown;  // The same, as links' rates foretell it.
    float risk = kUnknown;
    float keep = kUnknown;
    float share = kUnknown;  // Of a step, waiting for the exchange.
    // Counted so far.
    uint32_t mask_changes = 0, fallbacks = 0, norm_alarms = 0;
  };
  struct Period {
    double at = 0;     // It began.
    std::string mode;  // "COMPACTED fp32"; empty: no generation runs.
    std::string reason;
    uint64_t version = 0;
    bool before = false;  // It began before `at`, nobody knows when.
  };
  struct MaskSet {
    double at = 0;
    std::string digest;  // In hex.
    double keep = 0;
    bool before = false;  // It was in force before `at`, nobody knows when.
  };
  struct Event {
    double at = 0;
    std::string kind;  // "fault", "membership", "masks", "pin".
    std::string text;
  };

  // `at_start`: nobody looked before, so what is there may be old.
  void Observe(const GroupSnapshot& group, double now, bool at_start = false);

  const std::deque<Point>& points() const { return points_; }
  const std::deque<Period>& periods() const { return periods_; }
  const std::deque<MaskSet>& mask_sets() const { return mask_sets_; }
  const std::deque<Event>& events() const { return events_; }
  // What an agent's trainers needed of a step by themselves, over the last
  // `seconds`, at most kPaceWindow; nothing: it has not reported a step.
  std::optional<double> ComputeSeconds(const std::string& agent, double seconds,
                                       double now) const;
  // When what each parameter keeps was told last.
  double keep_at() const { return keep_at_; }
  // How much a counter has grown within the last `seconds`.
  uint32_t Grown(uint32_t Point::*counter, double seconds, double now) const;

 private:
  void NoteMode(const GroupSnapshot& group, double now, bool at_start);
  void NoteEvents(const GroupSnapshot& group, double now, bool at_start);
  void AddPoint(const GroupSnapshot& group, double now);
  void NotePaces(const GroupSnapshot& group, double now);
  void Tell(double now, const char* kind, std::string text);

  std::deque<Point> points_;
  std::deque<Period> periods_;
  std::deque<MaskSet> mask_sets_;
  std::deque<Event> events_;
  struct Pace {
    double at = 0;   // The first of its snapshots.
    double sum = 0;  // Of seconds, over them.
    uint32_t snapshots = 0;
  };
  std::map<std::string, std::deque<Pace>> paces_;  // By agent; oldest first.

  bool began_ = false;
  // As last observed.
  GroupPhase phase_ = GroupPhase::kWaiting;
  uint64_t generation_ = 0;
  AccountSnapshot account_;
  uint64_t failed_ = 0, norm_alarms_ = 0;
  std::set<std::string> lost_;
  std::shared_ptr<const protocol::KeepByParameter> keep_;
  double keep_at_ = 0;
  double dense_bytes_ = 0, wire_bytes_ = 0;  // At the newest point.
};

// "COMPACTED fp32".
std::string ModeText(protocol::Mode mode, protocol::Codec codec);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_JOB_TRACK_H_
