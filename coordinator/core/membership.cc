#include "coordinator/core/membership.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/core/rank_list.h"
#include "coordinator/core/reach.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

std::string Where(const Candidate& c) {
  return absl::StrCat("rank ", c.trainer.rank, " (agent '", c.agent,
                      "', site '", c.site, "')");
}

// Trainers cut longer lists of sites to this (launch_of_sites() in Python).
constexpr size_t kListedSites = 46;

// Of ranks, in a launch whose name begins "a:2,b:1 ": its sites, with as many
// ranks each. " (site a, b)", or nothing where it names none.
std::string SitesText(const std::string& launch,
                      const std::vector<uint32_t>& ranks) {
  if (!NamesSites(launch)) return "";
  std::vector<std::string> named;
  uint64_t first = 0;
  const absl::string_view list =
      absl::string_view(launch).substr(0, launch.find(' '));
  if (list.size() >= kListedSites) return "";
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::pair<absl::string_view, absl::string_view> site =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    uint32_t count = 0;
    if (!absl::SimpleAtoi(site.second, &count)) return "";
    const uint64_t end = first + count;
    if (std::any_of(ranks.begin(), ranks.end(),
                    [&](uint32_t r) { return r >= first && r < end; })) {
      named.emplace_back(site.first);
    }
    first = end;
  }
  if (named.empty()) return "";
  return absl::StrCat(" (site ", absl::StrJoin(named, ", "), ")");
}

std::vector<uint32_t> MissingOf(const Launch& launch) {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < launch.world_size(); ++rank) {
    if (!launch.by_rank.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

std::string MissingRanks(const Launch& launch) {
  return absl::StrCat(RankList(MissingOf(launch)), " of ", launch.world_size());
}

}  // namespace

bool NamesSites(const std::string& launch) {
  const size_t space = launch.find(' '), colon = launch.find(':');
  return space != std::string::npos && colon < space;
}

std::vector<const Candidate*> AllOf(const std::vector<Launch>& launches) {
  std::vector<const Candidate*> all;
  for (const Launch& launch : launches) {
    for (const auto& [rank, candidate] : launch.by_rank) {
      all.push_back(&candidate);
    }
  }
  return all;
}

std::optional<std::string> WhyApart(const Candidate& a, const Candidate& b) {
  // Launches count their ranks each from 0.
  const bool together = a.trainer.launch == b.trainer.launch;
  const std::string other = (together ? "" : "newcomer ") + Where(b);
  if (a.trainer.launch == b.trainer.launch &&
      a.trainer.world_size != b.trainer.world_size) {
    return absl::StrCat("world_size differs: ", Where(a), " has ",
                        a.trainer.world_size, ", ", other, " has ",
                        b.trainer.world_size,
                        "; start all ranks with the same world_size");
  }
  if (a.trainer.on_shrink != b.trainer.on_shrink) {
    return absl::StrCat("on_shrink differs: ", Where(a), " has ",
                        OnShrinkName(a.trainer.on_shrink), ", ", other, " has ",
                        OnShrinkName(b.trainer.on_shrink),
                        "; give all ranks the same");
  }
  if (a.trainer.model_digest != b.trainer.model_digest) {
    return absl::StrCat(
        "models differ: ", Where(a), " has ", a.trainer.model_summary, " [",
        a.trainer.model_digest.Short(), "], ", other, " has ",
        b.trainer.model_summary, " [", b.trainer.model_digest.Short(),
        "]; all ranks must train one model (names, shapes, dtypes and orders "
        "in memory of its parameters)");
  }
  return std::nullopt;
}

std::vector<Membership::Refusal> Membership::Join(const Candidate& candidate,
                                                  absl::Duration now) {
  const std::string& name = candidate.trainer.launch;
  for (const Refused& refused : refused_) {
    if (now >= refused.until || HasState(candidate)) continue;
    if (refused.agent.empty()) {
      if (refused.launch == name) return {{candidate, refused.reason}};
      continue;
    }
    if (refused.agent != candidate.agent ||
        refused.data_address != candidate.data_address) {
      continue;
    }
    const Refused agents = refused;  // Remember() moves it.
    std::vector<Refusal> refusals = TakeNewcomers(name, agents.reason);
    refusals.push_back({candidate, agents.reason});
    Remember({name, "", "", agents.reason, agents.until}, now);
    return refusals;
  }
  auto launch = std::find_if(launches_.begin(), launches_.end(),
                             [&](const Launch& l) { return l.name == name; });
  if (launch == launches_.end()) {
    if (launches_.size() >= kMaxLaunches) {
      return {{candidate,
               absl::StrCat(
                   "launch '", name, "': ", kMaxLaunches,
                   " other launches of this job wait already; all trainers "
                   "of one run must name the same launch")}};
    }
    launches_.push_back({name, {{candidate.trainer.rank, candidate}}});
    return {};
  }
  const Candidate& first = launch->by_rank.begin()->second;
  auto apart = WhyApart(first, candidate);
  for (const auto& [rank, other] : launch->by_rank) {
    if (!apart) apart = WhyNeitherDials(other, candidate);
  }
  if (apart) {
    std::vector<Refusal> refusals = Refuse(name, *apart, now);
    // An equal attach_id is the newcomer's own earlier word.
    std::erase_if(refusals, [&](const Refusal& refusal) {
      return refusal.candidate.trainer.attach_id == candidate.trainer.attach_id;
    });
    refusals.insert(refusals.begin(), {candidate, *apart});
    return refusals;
  }
  if (auto reason = WhyNot(*launch, candidate)) return {{candidate, *reason}};
  launch->by_rank[candidate.trainer.rank] = candidate;
  return {};
}

std::optional<std::string> Membership::WhyNot(
    const Launch& launch, const Candidate& candidate) const {
  auto same = launch.by_rank.find(candidate.trainer.rank);
  if (same != launch.by_rank.end() &&
      same->second.trainer.attach_id != candidate.trainer.attach_id) {
    return absl::StrCat(Where(candidate),
                        " is attached already: ", Where(same->second),
                        "; ranks must be unique over all sites of a job: end "
                        "one of two launches, or give it another "
                        "PACTRAIN_JOB_ID");
  }
  std::set<std::string> agents = {candidate.agent}, sites = {candidate.site};
  int beside = 0;
  for (const auto& [rank, other] : launch.by_rank) {
    agents.insert(other.agent);
    sites.insert(other.site);
    beside += other.agent == candidate.agent && rank != candidate.trainer.rank;
  }
  if (beside >= protocol::kMaxTrainersPerAgent) {
    return absl::StrCat(Where(candidate), " is one more than the ",
                        protocol::kMaxTrainersPerAgent,
                        " trainers that one agent may have in a job");
  }
  if (agents.size() > protocol::kMaxAgents) {
    return absl::StrCat(Where(candidate), " is at one agent more than the ",
                        protocol::kMaxAgents, " that a job may have");
  }
  if (sites.size() > protocol::kMaxSites) {
    return absl::StrCat(Where(candidate), " is in one site more than the ",
                        protocol::kMaxSites, " that a job may have");
  }
  return std::nullopt;
}

std::vector<Membership::Refusal> Membership::Refuse(const std::string& name,
                                                    const std::string& reason,
                                                    absl::Duration now) {
  std::vector<Refusal> refusals;
  for (const auto& [rank, candidate] : Take(name).by_rank) {
    refusals.push_back({candidate, reason});
  }
  Remember({name, "", "", reason, now + refusal_time_}, now);
  return refusals;
}

std::vector<Membership::Refusal> Membership::TakeNewcomers(
    const std::string& name, const std::string& reason) {
  std::vector<Refusal> refusals;
  std::vector<Candidate> newcomers;
  for (const Candidate* candidate : AllOf(launches_)) {
    if (candidate->trainer.launch != name || HasState(*candidate)) continue;
    refusals.push_back({*candidate, reason});
    newcomers.push_back(*candidate);
  }
  Remove(newcomers);
  return refusals;
}

std::vector<Membership::Refusal> Membership::RefuseNewcomers(
    const std::string& name, const std::string& reason, absl::Duration now) {
  Remember({name, "", "", reason, now + refusal_time_}, now);
  return TakeNewcomers(name, reason);
}

void Membership::RefuseAgent(const std::string& agent,
                             const std::string& data_address,
                             const std::string& reason, absl::Duration now) {
  Remember({"", agent, data_address, reason, now + refusal_time_}, now);
}

void Membership::Remember(Refused refused, absl::Duration now) {
  std::erase_if(refused_, [&](const Refused& old) {
    return now >= old.until ||
           (old.launch == refused.launch && old.agent == refused.agent);
  });
  if (refused_.size() >= 2 * kMaxLaunches) refused_.erase(refused_.begin());
  refused_.push_back(std::move(refused));
}

const Candidate* Membership::Find(const protocol::Digest& attach_id) const {
  for (const Launch& launch : launches_) {
    for (const auto& [rank, candidate] : launch.by_rank) {
      if (candidate.trainer.attach_id == attach_id) return &candidate;
    }
  }
  return nullptr;
}

std::optional<Candidate> Membership::Leave(const protocol::Digest& attach_id) {
  const Candidate* waiting = Find(attach_id);
  if (waiting == nullptr) return std::nullopt;
  Candidate left = *waiting;
  const auto launch = std::find_if(
      launches_.begin(), launches_.end(),
      [&](const Launch& l) { return l.name == left.trainer.launch; });
  launch->by_rank.erase(left.trainer.rank);
  if (launch->by_rank.empty()) launches_.erase(launch);
  return left;
}

void Membership::Remove(const std::vector<Candidate>& trainers) {
  for (const Candidate& candidate : trainers) {
    Leave(candidate.trainer.attach_id);
  }
}

std::vector<Candidate> Membership::DropAgent(const std::string& agent) {
  std::vector<Candidate> dropped;
  for (const Candidate* candidate : AllOf(launches_)) {
    if (candidate->agent == agent) dropped.push_back(*candidate);
  }
  Remove(dropped);
  return dropped;
}

Launch Membership::Take(const std::string& name) {
  for (auto launch = launches_.begin(); launch != launches_.end(); ++launch) {
    if (launch->name != name) continue;
    Launch taken = std::move(*launch);
    launches_.erase(launch);
    return taken;
  }
  return {name, {}};
}

const Launch* Membership::Complete() const {
  for (const Launch& launch : launches_) {
    if (launch.complete()) return &launch;
  }
  return nullptr;
}

const Launch* Membership::Replacing() const {
  for (const Launch& launch : launches_) {
    if (launch.complete() && launch.replaces()) return &launch;
  }
  return nullptr;
}

std::set<std::string> Membership::AgentNames() const {
  std::set<std::string> names;
  for (const Candidate* candidate : AllOf(launches_)) {
    names.insert(candidate->agent);
  }
  return names;
}

std::string Membership::WaitingReason() const {
  if (launches_.empty()) return "waiting for trainers to attach";
  if (launches_.size() == 1) {
    return absl::StrCat(
        "waiting for ", MissingRanks(launches_[0]),
        SitesText(launches_[0].name, MissingOf(launches_[0])),
        launches_[0].replaces()
            ? "; the launch replaces nothing (PACTRAIN_REPLACE) "
              "before it is complete, and waits as newcomers do"
            : "");
  }
  std::vector<std::string> parts;
  for (const Launch& launch : launches_) {
    parts.push_back(absl::StrCat("launch '", launch.name, "' lacks ",
                                 MissingRanks(launch)));
  }
  const auto sites = std::count_if(
      launches_.begin(), launches_.end(),
      [](const Launch& launch) { return NamesSites(launch.name); });
  return absl::StrCat(
      absl::StrJoin(parts, ", "),
      sites > 1 ? ": they name different sites; set PACTRAIN_SITES to the same "
                  "value at all sites"
                : ": all trainers of one run must name the same launch");
}

}  // namespace pactrain::coordinator
