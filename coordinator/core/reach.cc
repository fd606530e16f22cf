#include "coordinator/core/reach.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "protocol/types.h"

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
    if (old && other_old) members_[std::minmax(agent, other)] = why;
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

namespace {

// Those that reach each other, if need be over others.
std::vector<std::set<std::string>> SidesOf(
    const std::map<AgentPair, std::string>& cut,
    const std::map<std::string, Weight>& agents) {
  std::vector<std::set<std::string>> sides;
  for (const auto& known : agents) {
    const std::string& agent = known.first;
    std::set<std::string> side = {agent};
    std::erase_if(sides, [&](std::set<std::string>& other) {
      const bool joined =
          std::any_of(other.begin(), other.end(), [&](const auto& member) {
            return !cut.contains(std::minmax(agent, member));
          });
      if (joined) side.merge(other);
      return joined;
    });
    sides.push_back(std::move(side));
  }
  return sides;
}

Weight WeightOf(const std::set<std::string>& side,
                const std::map<std::string, Weight>& agents) {
  Weight sum;
  for (const std::string& agent : side) {
    const Weight& weight = agents.at(agent);
    sum.reached = std::max(sum.reached, weight.reached);
    sum.ranks += weight.ranks;
  }
  return sum;
}

bool IsLighter(const Weight& a, const Weight& b) {
  return std::tie(a.reached, a.ranks) < std::tie(b.reached, b.ranks);
}

}  // namespace

std::map<std::string, AgentPair> SmallerSides(
    const std::map<AgentPair, std::string>& cut,
    const std::map<std::string, Weight>& agents) {
  const std::vector<std::set<std::string>> sides = SidesOf(cut, agents);
  const auto stays = std::max_element(
      sides.begin(), sides.end(), [&](const auto& a, const auto& b) {
        return IsLighter(WeightOf(a, agents), WeightOf(b, agents));
      });
  std::map<std::string, AgentPair> out;
  for (const auto& [pair, why] : cut) {
    const auto& [a, b] = pair;
    if (!agents.contains(a) || !agents.contains(b)) continue;
    if (stays->contains(a) != stays->contains(b)) {
      out.emplace(stays->contains(a) ? b : a, pair);
    }
  }
  // Of one side some may not reach each other, either.
  for (const auto& [pair, why] : cut) {
    const auto& [a, b] = pair;
    if (!agents.contains(a) || !agents.contains(b) || out.contains(a) ||
        out.contains(b)) {
      continue;
    }
    out.emplace(IsLighter(agents.at(a), agents.at(b)) ? a : b, pair);
  }
  return out;
}

}  // namespace pactrain::coordinator
