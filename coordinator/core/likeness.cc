#include "coordinator/core/likeness.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/weakened.h"
#include "coordinator/core/lineup.h"

namespace pactrain::coordinator {
namespace {

constexpr size_t kMostNames = 8;

struct Holders {
  std::set<std::string> agents;
  size_t ranks = 0;
};
// What one says to have: gradient steps, and what they made.
using Account = std::pair<uint64_t, protocol::Digest>;

Account AccountOf(const Candidate& candidate) {
  return {candidate.trainer.lineage.committed, candidate.trainer.parameters};
}

// In a generation whose state both got steps have one number, and none between
// two numbers is of gradients unless their count says so. Before a new
// lineage's first gradient step ranks may not have had its broadcasts yet.
bool AreComparable(const Candidate& a, const Candidate& b,
                   const std::optional<Testimony::Began>& began) {
  const protocol::Trainer& one = a.trainer;
  const protocol::Trainer& other = b.trainer;
  if (other.parameters.empty() || one.lineage.id != other.lineage.id) {
    return false;
  }
  if (ReachedBy(a) == ReachedBy(b)) return true;
  if (!began || one.last_generation != other.last_generation ||
      std::min(ReachedBy(a), ReachedBy(b)) < began->state) {
    return false;
  }
  if (one.resume_step == other.resume_step) return true;
  return one.lineage.committed == other.lineage.committed &&
         (one.lineage.committed > began->state.first || began->has_donor);
}

std::string NamesText(const std::set<std::string>& agents) {
  const size_t shown = std::min(agents.size(), kMostNames);
  std::string text = absl::StrCat(
      "agent '",
      absl::StrJoin(agents.begin(), std::next(agents.begin(), shown), "', '"),
      "'");
  if (agents.size() > shown) {
    absl::StrAppend(&text, " and ", agents.size() - shown, " more");
  }
  return text;
}

std::string Text(const std::string& who, const Account& account) {
  return absl::StrCat(" ", who, " ", account.second.Short(), " after ",
                      account.first);
}

}  // namespace

Likeness LikenessOf(const Candidate& candidate,
                    const std::vector<const Candidate*>& all,
                    const Testimony& testimony) {
  if (candidate.trainer.parameters.empty()) return {};
  const auto began = testimony.BeganWith(candidate);
  std::map<Account, Holders> accounts;
  for (const Candidate* other : all) {
    if (!AreComparable(candidate, *other, began)) continue;
    Holders& holders = accounts[AccountOf(*other)];
    holders.agents.insert(other->agent);
    ++holders.ranks;
  }
  if (accounts.size() < 2 || PT_WEAKENED(OtherParametersCount)) return {};
  const Account own = AccountOf(candidate);
  const Holders mine = accounts[own];
  accounts.erase(own);
  Likeness likeness;
  likeness.text =
      absl::StrCat(", and others hold other parameters after the same steps:",
                   mine.agents.size() == 1 ? Text("it has", own)
                                           : Text(NamesText(mine.agents), own));
  for (const auto& [account, holders] : accounts) {
    absl::StrAppend(&likeness.text, ";",
                    Text(NamesText(holders.agents), account));
    const bool same = holders.agents == mine.agents;
    const size_t most = same ? holders.ranks : holders.agents.size();
    const size_t own_most = same ? mine.ranks : mine.agents.size();
    likeness.refuted |= most > own_most;
    likeness.disputed |= most == own_most;
  }
  return likeness;
}

}  // namespace pactrain::coordinator
