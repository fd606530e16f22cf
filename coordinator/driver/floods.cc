// What one may ask of the driver before it is too much.
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/driver/driver.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {

absl::Status Driver::CheckFlood(OpenStream& stream,
                                const protocol::AgentMessage& message,
                                absl::Duration now) {
  if (now - stream.window >= absl::Seconds(1)) {
    stream.window = now;
    stream.messages = 0;
    stream.reports.clear();
  }
  if (++stream.messages > protocol::kMaxMessagesPerSecond) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", protocol::kMaxMessagesPerSecond,
                     " messages in a second"));
  }
  const auto* local = std::get_if<protocol::LocalTrainers>(&message);
  if (local == nullptr) return absl::OkStatus();
  absl::Status joins = budgets_.TakeJoins(
      stream.caller, state_.CountNew(stream.agent, *local, now), now);
  if (!joins.ok()) {
    trail_.OnRefused({"agent refused", stream.caller, local->group.ToString(),
                      absl::StrCat("agent ", stream.agent),
                      std::string(joins.message()), ""},
                     Now());
  }
  return joins;
}

bool Driver::IsReportTooMany(OpenStream& stream,
                             const protocol::AgentMessage& message) const {
  const auto* report = std::get_if<protocol::StepReport>(&message);
  if (report == nullptr) return false;
  return ++stream.reports[report->group] > protocol::kMaxReportsPerSecond;
}

absl::Status Driver::TakeChange(const protocol::Caller& caller) {
  absl::Status taken = budgets_.TakeChange(caller, clock_());
  if (!taken.ok()) {
    trail_.OnRefused({"call refused", caller, "", "a change",
                      std::string(taken.message()), ""},
                     Now());
  }
  return taken;
}

}  // namespace pactrain::coordinator
