// What the page shows, as JSON: jobs, one job, links, conditions.
//
// Made of successive snapshots, of which it keeps an hour: at 100 jobs and
// 1,000 agents less than 32 MiB.
//
// Pure: time comes as an argument. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_PAGE_PAGE_MODEL_H_
#define PACTRAIN_COORDINATOR_PAGE_PAGE_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/certificate_life.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/page/conditions.h"
#include "coordinator/page/job_track.h"
#include "coordinator/page/link_track.h"

namespace pactrain::coordinator {

class PageModel {
 public:
  // Of attached models beyond these no history is kept, and none is shown; how
  // many is. Which: CutToShown().
  static constexpr size_t kMaxGroups = 128;

  struct Settings {
    double price_per_gb = 0;  // Of 10^9 bytes between sites; 0: not known.
    bool insecure_network = false;
  };
  explicit PageModel(Settings settings) : settings_(settings) {}

  // `now` is monotonic, `wall` the same moment for people.
  void Observe(StateSnapshot snapshot,
               std::optional<base::CertificateLives> certificates,
               absl::Duration now, absl::Time wall);

  // Grows with each Observe().
  uint64_t tick() const { return tick_; }

  // All jobs, and what is wrong. Of jobs those that changed after tick `since`,
  // unless others came or went; 0: all.
  std::string Overview(uint64_t since) const;
  // One of them, `id` as GroupId::ToString(), with the points after `since`.
  std::string Job(absl::string_view id, uint64_t since) const;
  // Links between sites, with the points after `since`, and plans in force.
  std::string Links(uint64_t since) const;
  // The alerts' rules, which never change.
  static std::string Rules();

 private:
  struct Summary {
    std::string json;
    uint64_t changed = 0;  // In this tick.
  };
  // For people: seconds since 1970.
  double Wall(double at) const { return at + wall_offset_; }
  // Does who saw tick `tick` last get all there is?
  bool IsAllAfter(uint64_t tick) const;
  // When it was; before all points for those.
  double TimeOf(uint64_t tick) const;
  std::string SummaryOf(const GroupSnapshot& group) const;
  void WriteConditions(class JsonWriter& json,
                       const std::function<bool(const Finding&)>& wanted) const;
  void WritePoints(const JobTrack& track, double after,
                   class JsonWriter& json) const;
  void WriteTrack(const JobTrack& track, class JsonWriter& json) const;
  void WriteAgents(const GroupSnapshot& group, class JsonWriter& json) const;

  const Settings settings_;
  uint64_t tick_ = 0;
  std::deque<double> times_;  // Of the newest ticks.
  double wall_offset_ = 0;
  StateSnapshot snapshot_;
  std::map<std::string, bool> connected_;  // Agents.
  std::set<std::string> hidden_groups_;    // As CutToShown().
  std::map<protocol::GroupId, JobTrack> jobs_;
  std::map<protocol::GroupId, Summary> summaries_;
  uint64_t jobs_changed_ = 0;  // Other jobs than before, in this tick.
  LinkTrack links_;
  Conditions conditions_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_PAGE_MODEL_H_
