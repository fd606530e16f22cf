#include "protocol/local_trainers.h"

#include <algorithm>

#include "protocol/limits.h"

namespace pactrain::protocol {
namespace {

template <typename T, typename Same>
bool Put(const T& what, std::vector<T>& all, Same same) {
  const auto old = std::find_if(all.begin(), all.end(), same);
  if (old == all.end()) {
    all.push_back(what);
    return true;
  }
  if (*old == what) return false;
  *old = what;
  return true;
}

// Those of `now` that were not so before.
template <typename T>
std::vector<T> NewOf(const std::vector<T>& before, const std::vector<T>& now) {
  std::vector<T> changed;
  for (const T& what : now) {
    if (std::find(before.begin(), before.end(), what) == before.end()) {
      changed.push_back(what);
    }
  }
  return changed;
}

bool IsGone(const TrainerLeft& left) { return !left.may_return; }

}  // namespace

bool Add(const TrainerJoined& joined, LocalTrainers& local) {
  const Digest& attach_id = joined.trainer.attach_id;
  const size_t before = std::erase_if(local.left, [&](const TrainerLeft& left) {
    return IsSameTrainer(left.attach_id, attach_id);
  });
  const bool changed = Put(joined, local.here, [&](const TrainerJoined& other) {
    return other.trainer.attach_id == attach_id;
  });
  return changed || before > 0;
}

bool Add(const TrainerLeft& left, LocalTrainers& local) {
  const size_t was_here =
      std::erase_if(local.here, [&](const TrainerJoined& joined) {
        return joined.trainer.attach_id == left.attach_id;
      });
  if (was_here > 0) {
    std::erase_if(local.votes,
                  [&](const MaskVote& vote) { return vote.rank == left.rank; });
  }
  const bool is_back = std::any_of(
      local.here.begin(), local.here.end(), [&](const TrainerJoined& joined) {
        return IsSameTrainer(joined.trainer.attach_id, left.attach_id);
      });
  if (is_back) return was_here > 0;
  TrainerLeft shorter = left;
  shorter.reason.resize(std::min(left.reason.size(), kMaxReasonOfLeft));
  const bool changed = Put(shorter, local.left, [&](const TrainerLeft& other) {
    return other.attach_id == left.attach_id;
  });
  if (std::count_if(local.left.begin(), local.left.end(), IsGone) >
      static_cast<ptrdiff_t>(kMaxLocalTrainers)) {
    local.left.erase(
        std::find_if(local.left.begin(), local.left.end(), IsGone));
  }
  return changed || was_here > 0;
}

bool Add(const MaskVote& vote, LocalTrainers& local) {
  std::erase_if(local.votes, [&](const MaskVote& other) {
    return other.generation != vote.generation;
  });
  return Put(vote, local.votes,
             [&](const MaskVote& other) { return other.rank == vote.rank; });
}

bool HasRoom(const LocalTrainers& local) {
  const size_t may_return =
      local.left.size() -
      std::count_if(local.left.begin(), local.left.end(), IsGone);
  return local.here.size() + may_return < kMaxLocalTrainers;
}

const TrainerLeft* FindLeft(const LocalTrainers& local,
                            const Digest& attach_id) {
  for (const TrainerLeft& left : local.left) {
    if (left.attach_id == attach_id) return &left;
  }
  return nullptr;
}

const TrainerJoined* FindHere(const LocalTrainers& local,
                              const Digest& attach_id) {
  for (const TrainerJoined& joined : local.here) {
    if (joined.trainer.attach_id == attach_id) return &joined;
  }
  return nullptr;
}

std::vector<AgentMessage> ChangesOf(const LocalTrainers& before,
                                    const LocalTrainers& now) {
  std::vector<AgentMessage> changes;
  if (now.report && now.report != before.report) changes.push_back(*now.report);
  for (const TrainerLeft& left : NewOf(before.left, now.left)) {
    changes.push_back(LocalTrainers{now.group, 0, {}, {left}, {}});
  }
  for (const TrainerJoined& joined : NewOf(before.here, now.here)) {
    changes.push_back(LocalTrainers{now.group, 0, {joined}, {}, {}});
  }
  for (const MaskVote& vote : NewOf(before.votes, now.votes)) {
    changes.push_back(LocalTrainers{now.group, 0, {}, {}, {vote}});
  }
  return changes;
}

}  // namespace pactrain::protocol
