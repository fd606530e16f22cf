#include "coordinator/driver/caller_budgets.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/driver/line_budget.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

// Who loses his stream brings all that wait once more: by then there have to be
// joins for 64 ranks of each of 16 models, and for a whole job of one key.
constexpr absl::Duration kJoinsShutOut = absl::Minutes(1);
constexpr absl::Duration kChangesShutOut = absl::Seconds(10);

base::IdentityBudgets::Limits JoinsOf(const char* whose, int identities) {
  return {.of = "new ranks",
          .whose = whose,
          .at_once = identities * protocol::kMaxJoinsAtOnce,
          .per_second = double{protocol::kMaxJoinsPerSecond} * identities,
          .shut_out = kJoinsShutOut};
}

absl::Status Named(const protocol::Caller& caller, const char* did,
                   const absl::Status& taken) {
  if (taken.ok()) return taken;
  return absl::Status(taken.code(),
                      absl::StrCat(caller.who, did, taken.message()));
}

}  // namespace

CallerBudgets::CallerBudgets()
    : joins_(JoinsOf("one identity", 1)),
      joins_of_keys_(
          JoinsOf("all of one job key", protocol::kIdentitiesOfAJobKey)),
      changes_({.of = "changes",
                .at_once = protocol::kMaxChangesAtOnce,
                .per_second = protocol::kMaxChangesPerSecond,
                .shut_out = kChangesShutOut}) {}

absl::Status CallerBudgets::TakeJoins(const protocol::Caller& caller,
                                      uint64_t joins, absl::Duration now) {
  if (joins == 0 || caller.who == protocol::Caller().who) {
    return absl::OkStatus();
  }
  const std::string source = SourceOf(caller);
  absl::Status taken =
      joins_.Take(absl::StrCat(caller.who, " ", source), now, nullptr, joins);
  if (taken.ok() && source != caller.who) {
    taken = joins_of_keys_.Take(source, now, nullptr, joins);
  }
  return Named(caller, " brings ", taken);
}

absl::Status CallerBudgets::TakeChange(const protocol::Caller& caller,
                                       absl::Duration now) {
  return Named(caller, " makes ", changes_.Take(SourceOf(caller), now));
}

}  // namespace pactrain::coordinator
