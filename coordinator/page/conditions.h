// What the alerts of deploy/prometheus ask, answered from what the coordinator
// knows by itself: which are true, of whom, and since when.
//
// Pure: time comes as an argument. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_PAGE_CONDITIONS_H_
#define PACTRAIN_COORDINATOR_PAGE_CONDITIONS_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/certificate_life.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/page/alert_rules.h"
#include "coordinator/page/job_track.h"
#include "coordinator/page/link_track.h"

namespace pactrain::coordinator {

// All that a condition may be about.
struct Facts {
  const StateSnapshot& snapshot;
  const std::map<protocol::GroupId, JobTrack>& jobs;
  const LinkTrack& links;
  const std::optional<base::CertificateLives>& certificates;
  bool insecure_network = false;
  double now = 0;   // Seconds, as the tracks'.
  absl::Time wall;  // For certificates.
};

struct Finding {
  std::optional<protocol::GroupId> job;  // None: it is of no job.
  std::string subject;  // Tells it from others of the rule: "a to b".
  std::string text;     // One sentence, with figures.
};

class Conditions {
 public:
  static constexpr size_t kMaxFindings = 100;  // Of one rule.

  struct Standing {
    Finding finding;
    double since = 0;
    bool fires = false;  // It has been true for as long as its rule asks.
  };

  void Evaluate(const Facts& facts);

  // By index into AlertRules().
  const std::vector<std::vector<Standing>>& standing() const {
    return standing_;
  }
  // Can the coordinator answer it? Of the others Prometheus tells.
  static bool IsSeenHere(const AlertRule& rule);

 private:
  std::vector<std::vector<Standing>> standing_ =
      std::vector<std::vector<Standing>>(AlertRules().size());
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_CONDITIONS_H_
