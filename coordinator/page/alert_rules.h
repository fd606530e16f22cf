// The alerts of deploy/prometheus/alerts.yml with what docs/runbooks.md says of
// each; made from both by alert_rules.py.
#ifndef PACTRAIN_COORDINATOR_PAGE_ALERT_RULES_H_
#define PACTRAIN_COORDINATOR_PAGE_ALERT_RULES_H_

#include "absl/types/span.h"

namespace pactrain::coordinator {

struct AlertRule {
  const char* name;
  const char* severity;
  const char* expr;
  const char* symptom;
  const char* causes;
  const char* command;
  const char* to_do;
  const char* not_mean;
  int for_seconds;     // Until it is told of.
  int window_seconds;  // That it counts over; 0: none.
  double threshold;    // What is measured is held against it, or is a factor.
};

absl::Span<const AlertRule> AlertRules();

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_ALERT_RULES_H_
