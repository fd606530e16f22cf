// Ranks that come and go: the end of a generation is the beginning of the next.
#include "coordinator/core/group.h"

#include "absl/strings/str_cat.h"

namespace pactrain::coordinator {

// Complete with those of it that train already, and none of its ranks twice.
bool Group::IsReady(const Launch& launch) const {
  const auto detached = detached_.find(launch.name);
  size_t seated = detached == detached_.end() ? 0 : detached->second.size();
  for (const auto& [id, candidate] : roster_) {
    if (candidate.trainer.launch != launch.name) continue;
    if (launch.by_rank.contains(candidate.trainer.rank)) return false;
    ++seated;
  }
  return launch.by_rank.size() + seated >= launch.world_size();
}

// Newcomers end the running generation; all meet in the next one.
void Group::TryAdmit(Context& c) {
  if (roster_.empty()) return;
  for (const Launch& launch : membership_.launches()) {
    if (!IsReady(launch)) continue;
    const std::string name = launch.name;
    const auto apart =
        WhyApart(roster_.begin()->second, launch.by_rank.begin()->second);
    if (apart) {
      Refuse(membership_.Refuse(name, *apart, c.now), c);
    } else {
      End(absl::StrCat("launch '", name, "' joins with ", launch.by_rank.size(),
                       " ranks"),
          c);
    }
    return;  // The list of launches has changed.
  }
}

Remains Group::MakeRemains(const Context& c) const {
  Remains remains;
  remains.generation = generation_->number;
  remains.on_shrink = generation_->on_shrink;
  remains.ranks = seats_.size();
  remains.detached = seats_.Count(Seats::State::kDetached);
  remains.gone = remains.detached + seats_.Count(Seats::State::kLeft);
  remains.since_end = c.now - ended_at_;
  for (const auto& [id, candidate] : roster_) {
    ++remains.left_of[candidate.trainer.launch];
  }
  remains.detached_of = detached_;
  return remains;
}

void Group::TryRegroup(Context& c) {
  const NextLineup next = MakeNextLineup(membership_.launches(), MakeRemains(c),
                                         c.options.regroup_timeout);
  if (next.lineup) Form(*next.lineup, c);
}

// Empty: what is said of groups whose ranks stay holds.
std::string Group::RegroupReason(const Context& c) const {
  if (running()) {
    return membership_.Complete() == nullptr
               ? ""
               : absl::StrCat("generation ", generation_->number,
                              " runs; joining it");
  }
  if (!AnyReturned(membership_.launches(), generation_->number)) return "";
  return MakeNextLineup(membership_.launches(), MakeRemains(c),
                        c.options.regroup_timeout)
      .waiting;
}

}  // namespace pactrain::coordinator
