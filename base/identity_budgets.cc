#include "base/identity_budgets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pactrain::base {

double IdentityBudgets::TurnsAt(const Store& store, absl::Duration now) const {
  return std::min(
      static_cast<double>(limits_.at_once),
      store.turns + limits_.per_second * absl::ToDoubleSeconds(now - store.at));
}

void IdentityBudgets::MakeRoom(absl::Duration now) {
  std::erase_if(stores_, [&](const auto& entry) {
    return entry.second.shut_until <= now &&
           TurnsAt(entry.second, now) >= limits_.at_once;
  });
  if (stores_.size() < kMaxIdentities) return;
  auto fullest = stores_.end();
  for (auto it = stores_.begin(); it != stores_.end(); ++it) {
    if (it->second.shut_until > now) continue;
    if (fullest == stores_.end() ||
        TurnsAt(it->second, now) > TurnsAt(fullest->second, now)) {
      fullest = it;
    }
  }
  if (fullest != stores_.end()) stores_.erase(fullest);
}

absl::Status IdentityBudgets::Take(const std::string& who, absl::Duration now,
                                   bool* news, uint64_t turns) {
  if (news != nullptr) *news = false;
  auto it = stores_.find(who);
  if (it == stores_.end()) {
    if (stores_.size() >= kMaxIdentities) MakeRoom(now);
    if (stores_.size() >= kMaxIdentities) {
      return absl::ResourceExhaustedError(absl::StrCat(
          kMaxIdentities, " identities are shut out for asking too much"));
    }
    it = stores_.emplace(who, Store{double(limits_.at_once), now, now}).first;
  }
  Store& store = it->second;
  if (store.shut_until <= now) {
    store.turns = TurnsAt(store, now);
    store.at = now;
    if (store.turns >= static_cast<double>(turns)) {
      store.turns -= static_cast<double>(turns);
      return absl::OkStatus();
    }
    store.shut_until = now + limits_.shut_out;
    if (news != nullptr) *news = true;
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "more than %d %s at once and %.10g a second after them, as many as %s "
      "may have; it is shut out for %s",
      limits_.at_once, limits_.of, limits_.per_second, limits_.whose,
      absl::FormatDuration(limits_.shut_out)));
}

}  // namespace pactrain::base
