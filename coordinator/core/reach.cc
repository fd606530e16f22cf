#include "coordinator/core/reach.h"

#include "absl/strings/str_cat.h"
#include "protocol/reach.h"

namespace pactrain::coordinator {

std::optional<std::string> WhyNeitherDials(const Candidate& a,
                                           const Candidate& b) {
  using protocol::kNobodyDials;
  if (a.agent == b.agent || a.data_address != kNobodyDials ||
      b.data_address != kNobodyDials) {
    return std::nullopt;
  }
  return absl::StrCat(
      "agents '", a.agent, "' (site '", a.site, "') and '", b.agent,
      "' (site '", b.site,
      "') both have --advertise-address none, so neither can dial the other; "
      "give "
      "one of them an address that the other can dial (behind one NAT: the "
      "private one)");
}

std::vector<Unreached::Blame> Unreached::Note(
    const std::string& agent, const std::vector<std::string>& others,
    const std::string& why,
    const std::function<bool(const std::string& agent)>& was_before) {
  std::vector<Blame> sure;
  for (const std::string& other : others) {
    const bool old = was_before(agent), other_old = was_before(other);
    if (!old && !other_old) newcomers_[{agent, other}] = why;
    if (old == other_old) continue;
    const std::string& newcomer = old ? other : agent;
    if (blamed_.insert(newcomer).second) sure.push_back({newcomer, why});
  }
  return sure;
}

std::vector<Unreached::Blame> Unreached::Settle() {
  std::vector<Blame> rest;
  const std::set<std::string> sure = blamed_;
  for (const auto& [pair, why] : std::exchange(newcomers_, {})) {
    const auto& [from, to] = pair;
    if (sure.contains(from) || sure.contains(to)) continue;
    for (const std::string& agent : {from, to}) {
      if (blamed_.insert(agent).second) rest.push_back({agent, why});
    }
  }
  return rest;
}

}  // namespace pactrain::coordinator
