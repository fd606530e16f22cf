#include "coordinator/core/lineup.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

bool IsOf(const Candidate& candidate, uint64_t generation) {
  return candidate.trainer.last_generation == generation;
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
  for (const Launch& launch : waiting) {
    for (const auto& [rank, candidate] : launch.by_rank) {
      if (candidate.trainer.last_generation != 0) admitted.push_back(candidate);
    }
  }
  for (const Launch& launch : waiting) {
    const auto gone = detached.find(launch.name);
    const size_t left = gone == detached.end() ? 0 : gone->second.size();
    if (launch.by_rank.size() + left < launch.world_size()) continue;
    std::vector<Candidate> more = admitted;
    for (const auto& [rank, candidate] : launch.by_rank) {
      if (candidate.trainer.last_generation == 0) more.push_back(candidate);
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

uint64_t GreatestStep(const std::vector<Candidate>& trainers,
                      uint64_t generation) {
  uint64_t greatest = 0;
  for (const Candidate& c : trainers) {
    if (IsOf(c, generation))
      greatest = std::max(greatest, c.trainer.resume_step);
  }
  return greatest;
}

// Who may still return, but is of a launch that has begun to leave: it may have
// found its generation ended when it wanted to detach.
size_t Leaving(const std::vector<Candidate>& here, const Remains& remains) {
  size_t leaving = 0;
  for (const auto& [launch, ranks] : remains.detached_of) {
    const auto left = remains.left_of.find(launch);
    if (ranks.empty() || left == remains.left_of.end()) continue;
    const size_t returned =
        std::count_if(here.begin(), here.end(), [&](const Candidate& c) {
          return c.trainer.launch == launch && IsOf(c, remains.generation);
        });
    leaving += left->second - std::min(left->second, returned);
  }
  return leaving;
}

std::string WaitingText(size_t here, size_t wanted, const Remains& remains) {
  return absl::StrCat(here, " of ", wanted, " ranks are here (generation ",
                      remains.generation, " had ", remains.ranks,
                      ", on_shrink is ",
                      protocol::OnShrinkName(remains.on_shrink),
                      "): start what is missing, or wait until it is back");
}

}  // namespace

bool AnyReturned(const std::vector<Launch>& waiting, uint64_t generation) {
  for (const Launch& launch : waiting) {
    for (const auto& [rank, candidate] : launch.by_rank) {
      if (IsOf(candidate, generation)) return true;
    }
  }
  return false;
}

Lineup LineupOf(const Launch& launch) {
  Lineup lineup;
  for (const auto& [rank, candidate] : launch.by_rank) {
    lineup.trainers.push_back(candidate);
    lineup.next_step =
        std::max(lineup.next_step, candidate.trainer.resume_step);
  }
  return lineup;
}

NextLineup MakeNextLineup(const std::vector<Launch>& waiting,
                          const Remains& remains,
                          absl::Duration regroup_timeout) {
  Lineup lineup;
  lineup.trainers = Admitted(waiting, remains.detached_of);
  const size_t here = lineup.trainers.size();
  const size_t returned = std::count_if(
      lineup.trainers.begin(), lineup.trainers.end(),
      [&](const Candidate& c) { return IsOf(c, remains.generation); });
  const size_t expected = remains.ranks - remains.gone;
  if (returned < expected && remains.since_end < regroup_timeout) {
    return {{}, WaitingText(returned, expected, remains)};
  }
  const size_t wanted =
      remains.ranks - remains.detached - Leaving(lineup.trainers, remains);
  if (remains.on_shrink == protocol::OnShrink::kPause && here < wanted) {
    return {{}, WaitingText(here, wanted, remains)};
  }
  SortByRank(lineup.trainers);
  lineup.next_step = GreatestStep(lineup.trainers, remains.generation);
  for (uint32_t rank = 0; rank < here; ++rank) {
    const Candidate& c = lineup.trainers[rank];
    const bool current = IsOf(c, remains.generation) &&
                         c.trainer.resume_step == lineup.next_step;
    if (!current) {
      lineup.needs_state.push_back(rank);
    } else if (!lineup.donor) {
      lineup.donor = rank;
    }
  }
  return {std::move(lineup), ""};
}

}  // namespace pactrain::coordinator
