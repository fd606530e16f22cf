#include "coordinator/core/options.h"

#include "absl/strings/str_cat.h"
#include "coordinator/core/planner.h"

namespace pactrain::coordinator {

absl::Status Options::Check() const {
  if (epoch_steps < 1 || epoch_steps > 1'000'000) {
    return absl::InvalidArgumentError(absl::StrCat(
        "epoch_steps is ", epoch_steps, "; allowed are 1 to 1000000"));
  }
  if (!(risk_bound >= 0 && risk_bound <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("risk_bound is ", risk_bound, "; allowed are 0 to 1"));
  }
  if (!(min_exchange_share >= 0 && min_exchange_share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "min_exchange_share is ", min_exchange_share, "; allowed are 0 to 1"));
  }
  if (!(norm_alarm == 0 || norm_alarm > 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "norm_alarm is ", norm_alarm, "; allowed are 0 and more than 1"));
  }
  if (heartbeat_interval < absl::Milliseconds(10) ||
      heartbeat_interval > absl::Seconds(10)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "heartbeat_interval is ", absl::FormatDuration(heartbeat_interval),
        "; 10ms to 10s is allowed"));
  }
  if (agent_timeout <= heartbeat_interval) {
    return absl::InvalidArgumentError(
        absl::StrCat("agent_timeout is ", absl::FormatDuration(agent_timeout),
                     "; it must be longer than heartbeat_interval, which is ",
                     absl::FormatDuration(heartbeat_interval)));
  }
  if (regroup_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "regroup_timeout is ", absl::FormatDuration(regroup_timeout),
        "; it may not be negative"));
  }
  if (presume_dead_after < regroup_timeout) {
    return absl::InvalidArgumentError(absl::StrCat(
        "presume_dead_after is ", absl::FormatDuration(presume_dead_after),
        "; it must be at least ", absl::FormatDuration(regroup_timeout),
        ", for which ranks are waited for anyway"));
  }
  if (max_agents < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_agents is ", max_agents, "; at least 1 is needed"));
  }
  const absl::Status rates = CheckSiteRates(site_rates, links);
  if (!rates.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("site_rates: ", absl::string_view(rates.message())));
  }
  const absl::Status tree = CheckLinks(links);
  if (tree.ok()) return tree;
  return absl::InvalidArgumentError(
      absl::StrCat("links: ", absl::string_view(tree.message())));
}

}  // namespace pactrain::coordinator
