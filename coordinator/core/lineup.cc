#include "coordinator/core/lineup.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/weakened.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

bool IsOf(const Candidate& candidate, const protocol::Digest& lineage) {
  if (PT_WEAKENED(StaleStateCurrent)) return HasState(candidate);
  return candidate.trainer.lineage.id == lineage;
}

// Nobody could hold it against others.
bool SaysNone(const Candidate& candidate) {
  return candidate.trainer.parameters.empty();
}

// Within the limits of one generation.
bool Fits(const std::vector<Candidate>& trainers) {
  std::map<std::string, int> by_agent;
  std::set<std::string> sites;
  for (const Candidate& candidate : trainers) {
    if (++by_agent[candidate.agent] > protocol::kMaxTrainersPerAgent) {
      return false;
    }
    sites.insert(candidate.site);
  }
  return trainers.size() <= static_cast<size_t>(protocol::kMaxRanks) &&
         by_agent.size() <= static_cast<size_t>(protocol::kMaxAgents) &&
         sites.size() <= static_cast<size_t>(protocol::kMaxSites);
}

// Those who have been in the job, and the newcomers of complete launches as far
// as there is room.
std::vector<Candidate> Admitted(const std::vector<Launch>& waiting,
                                const RanksByLaunch& detached) {
  std::vector<Candidate> admitted;
  for (const Candidate* candidate : AllOf(waiting)) {
    if (HasState(*candidate)) admitted.push_back(*candidate);
  }
  for (const Launch& launch : waiting) {
    const auto gone = detached.find(launch.name);
    const size_t left = gone == detached.end() ? 0 : gone->second.size();
    if (launch.by_rank.size() + left < launch.world_size()) continue;
    std::vector<Candidate> more = admitted;
    for (const auto& [rank, candidate] : launch.by_rank) {
      if (!HasState(candidate)) more.push_back(candidate);
    }
    if (Fits(more)) admitted = std::move(more);
  }
  return admitted;
}

// By the ranks they asked for where no two asked for the same, else by site.
void SortByRank(std::vector<Candidate>& trainers) {
  std::set<uint32_t> asked;
  for (const Candidate& c : trainers) asked.insert(c.trainer.rank);
  const bool distinct = asked.size() == trainers.size();
  std::sort(trainers.begin(), trainers.end(),
            [&](const Candidate& a, const Candidate& b) {
              if (distinct) return a.trainer.rank < b.trainer.rank;
              return std::tie(a.site, a.trainer.launch, a.trainer.rank) <
                     std::tie(b.site, b.trainer.launch, b.trainer.rank);
            });
}

std::string WaitingText(size_t here, const Remains& remains) {
  const std::string text =
      absl::StrCat(here, " ranks are here; generation ", remains.generation,
                   " had ", remains.ranks, ", on_shrink is ",
                   protocol::OnShrinkName(remains.on_shrink));
  if (remains.alive > 0) {
    return absl::StrCat(text, "; ", remains.alive,
                        " live and come with their next step");
  }
  if (remains.unknown > 0) {
    return absl::StrCat(text, "; ", remains.unknown,
                        " may come when their agent is back",
                        remains.unseen.empty() ? "" : ": ", remains.unseen);
  }
  if (!remains.unseen.empty()) {
    return absl::StrCat(text, "; ", remains.unseen,
                        ": bring it back, or start what is missing");
  }
  return absl::StrCat(text, ": start what is missing");
}

}  // namespace

Reached ReachedBy(const Candidate& candidate) {
  return {candidate.trainer.lineage.committed, candidate.trainer.resume_step};
}

bool IsAwaited(const Remains& remains) {
  return (remains.alive > 0 && !PT_WEAKENED(LivingNotAwaited)) ||
         (remains.unknown > 0 && !PT_WEAKENED(UnknownNotAwaited));
}

std::optional<Reached> NewestReturned(const std::vector<Launch>& waiting,
                                      const protocol::Digest& lineage) {
  std::optional<Reached> newest;
  for (const Candidate* candidate : AllOf(waiting)) {
    if (!IsOf(*candidate, lineage)) continue;
    newest = std::max(newest.value_or(Reached()), ReachedBy(*candidate));
  }
  return newest;
}

Lineup LineupOf(const Launch& launch) {
  Lineup lineup;
  for (const auto& [rank, candidate] : launch.by_rank) {
    lineup.trainers.push_back(candidate);
    lineup.next_step =
        std::max(lineup.next_step, candidate.trainer.resume_step);
    lineup.lineage.committed =
        std::max(lineup.lineage.committed, candidate.trainer.lineage.committed);
  }
  return lineup;
}

NextLineup MakeNextLineup(const std::vector<Launch>& waiting,
                          const Remains& remains) {
  Lineup lineup;
  lineup.trainers = Admitted(waiting, remains.detached_of);
  const size_t here = lineup.trainers.size();
  const bool awaited = IsAwaited(remains);
  const bool too_few =
      remains.on_shrink == protocol::OnShrink::kPause &&
      here < remains.needed.value_or(remains.ranks - remains.detached);
  if (awaited || (too_few && !PT_WEAKENED(PauseWithFewer)))
    return {{}, WaitingText(here, remains)};
  SortByRank(lineup.trainers);
  Reached newest;
  for (const Candidate& c : lineup.trainers) {
    if (!IsOf(c, remains.lineage)) continue;
    newest = PT_WEAKENED(LeastStateGiven) && newest.second != 0
                 ? std::min(newest, ReachedBy(c))
                 : std::max(newest, ReachedBy(c));
    lineup.next_step = std::max(lineup.next_step, c.trainer.resume_step);
  }
  for (uint32_t rank = 0; rank < here; ++rank) {
    const Candidate& c = lineup.trainers[rank];
    const bool current =
        IsOf(c, remains.lineage) &&
        (ReachedBy(c) == newest || PT_WEAKENED(AllOfGenerationCurrent));
    if (!current) {
      lineup.needs_state.push_back(rank);
    } else if (!lineup.donor ||
               (SaysNone(lineup.trainers[*lineup.donor]) && !SaysNone(c))) {
      lineup.donor = rank;
      lineup.lineage = c.trainer.lineage;
    }
  }
  return {std::move(lineup), ""};
}

}  // namespace pactrain::coordinator
