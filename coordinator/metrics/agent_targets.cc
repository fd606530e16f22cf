#include "coordinator/metrics/agent_targets.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pactrain::coordinator {
namespace {

// Agents say what they like.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || byte < 0x20 || byte >= 0x7f) {
      absl::StrAppendFormat(&quoted, "\\u%04x", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace

std::string AgentTargets(const StateSnapshot& snapshot) {
  std::string targets;
  for (const AgentSnapshot& agent : snapshot.agents) {
    if (!agent.connected || agent.metrics_address.empty()) continue;
    absl::StrAppend(&targets, targets.empty() ? "" : ",", "\n  {\"targets\": [",
                    Quoted(agent.metrics_address),
                    "], \"labels\": {\"agent\": ", Quoted(agent.agent),
                    ", \"site\": ", Quoted(agent.site), "}}");
  }
  return absl::StrCat("[", targets, "\n]\n");
}

}  // namespace pactrain::coordinator
