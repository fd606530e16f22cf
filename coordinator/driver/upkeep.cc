// What an operator wants of agents, of who may do what, and of the journal as a
// whole.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/driver/driver.h"

namespace pactrain::coordinator {

absl::StatusOr<std::vector<std::string>> Driver::Drain(
    const std::string& agent, bool force, const protocol::Caller& caller) {
  const std::string by = caller.who.empty() ? "an operator" : caller.who;
  std::vector<std::string> jobs;
  const absl::Status status = Operate(
      [&](CoordinatorState& state,
          absl::Duration now) -> absl::StatusOr<Effects> {
        auto drained = state.Drain(agent, by, force, now);
        if (!drained.ok()) return drained.status();
        jobs = std::move(drained->jobs);
        return std::move(drained->effects);
      },
      caller);
  if (!status.ok()) return status;
  return jobs;
}

absl::Status Driver::Undrain(const std::string& agent,
                             const protocol::Caller& caller) {
  return Operate([&](CoordinatorState& state,
                     absl::Duration) { return state.Undrain(agent); },
                 caller);
}

absl::StatusOr<CoordinatorState::Evicted> Driver::Evict(
    const std::string& who, const protocol::Caller& caller) {
  const std::string by = caller.who.empty() ? "an operator" : caller.who;
  CoordinatorState::Evicted done;
  RETURN_IF_ERROR(Operate(
      [&](CoordinatorState& state,
          absl::Duration now) -> absl::StatusOr<Effects> {
        ASSIGN_OR_RETURN(done, state.Evict(who, by, now));
        return std::move(done.effects);
      },
      caller));
  return done;
}

absl::Status Driver::Readmit(const std::string& who,
                             const protocol::Caller& caller) {
  return Operate([&](CoordinatorState& state,
                     absl::Duration) { return state.Readmit(who); },
                 caller);
}

std::vector<std::string> Driver::EvictedRules() {
  Turn turn(*this);
  std::vector<std::string> rules;
  for (const auto& [rule, denied] : state_.denied()) rules.push_back(rule);
  return rules;
}

absl::StatusOr<std::string> Driver::Backup(const std::string& name,
                                           const protocol::Caller& caller) {
  const std::string what = absl::StrCat("backups/", name);
  {
    base::MutexLock lock(&mu_);
    RETURN_IF_ERROR(TakeChange(caller));
  }
  RETURN_IF_ERROR(
      Record({"backup", caller, "", what, "asked for by an operator", ""}));
  auto path = journal_->Backup(name);
  if (path.ok()) return path;
  // The call's own error is what matters to whom asked.
  (void)Record({"backup failed", caller, "", what,
                std::string(path.status().message()), ""});
  return path;
}

absl::Status Driver::Record(protocol::AuditEvent event) {
  absl::Status written;
  {
    Turn turn(*this);
    if (read_only_) {
      return absl::UnavailableError(
          "the coordinator's journal cannot be written; see its log");
    }
    trail_.OnAction(std::move(event), Now());
    written = Append({}, {});
    if (!written.ok()) Fail(written);
  }
  Deliver();
  return written;
}

}  // namespace pactrain::coordinator
