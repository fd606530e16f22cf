#include "coordinator/admin/cluster_text.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/admin/table.h"

namespace pactrain::coordinator {

std::string AgentsTable(const v1::ListAgentsResponse& agents) {
  if (agents.agents().empty()) return "no agents are known\n";
  std::vector<Row> rows = {{"AGENT", "SITE", "ADDRESS", "VERSION", "STATE"}};
  for (const v1::AgentState& agent : agents.agents()) {
    rows.push_back({agent.agent(), agent.site(), agent.data_address(),
                    agent.version(),
                    !agent.connected()        ? "away"
                    : agent.drained().empty() ? "connected"
                                              : agent.drained()});
  }
  return Table(rows);
}

std::string LinksTable(const v1::ListAgentsResponse& agents) {
  if (agents.links().empty()) {
    return "no job runs over two sites, so no link was measured\n";
  }
  std::vector<Row> rows = {{"FROM", "TO", "AGENT", "RATE", "ROUND TRIP"}};
  for (const v1::LinkState& link : agents.links()) {
    rows.push_back({link.site(), link.peer_site(), link.agent(),
                    link.goodput_bytes_per_second() > 0
                        ? RateText(link.goodput_bytes_per_second())
                        : "not measured",
                    link.rtt_seconds() > 0
                        ? absl::StrFormat("%.1f ms", 1000 * link.rtt_seconds())
                        : "not measured"});
  }
  return Table(rows);
}

std::string DrainedText(const std::string& agent,
                        const v1::DrainResponse& done) {
  return absl::StrCat(
      "drained ", agent, ": ",
      done.jobs().empty()
          ? "no rank was there"
          : absl::StrCat("its ranks leave ", absl::StrJoin(done.jobs(), ", ")),
      "; it takes trainers again once it is started again, or undrained\n");
}

std::string EvictedText(const std::string& who, const v1::EvictResponse& done) {
  // What people do after it, and what would help them better.
  const bool all_of_job =
      absl::StartsWith(who, "job/") && absl::EndsWith(who, "/*");
  const std::string back = absl::StrCat(
      all_of_job ? "; a new key of the job is refused by that, too: to put out "
                   "one key alone: pactrain-admin evict key/ID, as pactrain-"
                   "admin audit shows it"
                 : "",
      "; to take it back: pactrain-admin readmit '", who, "'\n");
  if (!done.meant().empty()) {
    return absl::StrCat("evicted ", who, ", who is ",
                        absl::StrJoin(done.meant(), ", "),
                        " by now: it may do nothing any more, and its ranks "
                        "leave",
                        back);
  }
  std::string nobody = "nobody who is connected";
  if (absl::StrContains(who, "agent/")) {
    absl::StrAppend(
        &nobody, ", and no agent that is known; known are: ",
        done.known().empty() ? "none" : absl::StrJoin(done.known(), ", "));
  }
  return absl::StrCat("evicted ", who, ", which means ", nobody,
                      "; whom it comes to mean may do nothing", back);
}

}  // namespace pactrain::coordinator
