#include "coordinator/core/mask_votes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/weakened.h"
#include "coordinator/core/rank_list.h"

namespace pactrain::coordinator {
namespace {

// Votes that differ again after so many steps at the most have differed all the
// time, if no votes of all trainers after one step were equal in between.
constexpr uint64_t kRecentSteps = 10;

// Unchanged steps that the vote lacks.
uint32_t StepsToGo(const protocol::MaskVote& vote) {
  return vote.settle_steps - std::min(vote.settle_steps, vote.steps_unchanged);
}

// `step` restarts at 0 with the coordinator while agents have not reported.
uint64_t StepsSince(const std::optional<uint64_t>& since, uint64_t step) {
  return since && step > *since ? step - *since : 0;
}

}  // namespace

absl::StatusOr<bool> MaskVotes::Add(const protocol::MaskVote& vote,
                                    uint64_t step) {
  if (vote.rank >= votes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("mask vote of rank ", vote.rank, " in a generation of ",
                     votes_.size(), " trainers"));
  }
  std::optional<protocol::MaskVote>& last = votes_[vote.rank];
  const bool changed = !last || last->mask_digest != vote.mask_digest ||
                       last->layout_digest != vote.layout_digest;
  last = vote;
  after_steps_ = std::max(after_steps_, vote.after_steps);
  if (Difference()) {
    if (!unequal_since_ || StepsSince(unequal_at_, step) > kRecentSteps) {
      unequal_since_ = step;
    }
    unequal_at_ = step;
  } else if (!AnyOutdated()) {
    unequal_since_.reset();
  }
  switch (Evaluate(step).state) {
    case MaskState::kNone:
    case MaskState::kStable:
      unsettled_since_.reset();
      break;
    case MaskState::kUnequal:
    case MaskState::kSettling:
      if (!unsettled_since_) unsettled_since_ = step;
      break;
    case MaskState::kMissing:
      break;
  }
  return changed;
}

bool MaskVotes::IsOutdated(const protocol::MaskVote& vote) const {
  return StepsToGo(vote) > 0 && vote.after_steps != 0 &&
         vote.after_steps < after_steps_;
}

bool MaskVotes::AnyOutdated() const {
  return std::any_of(votes_.begin(), votes_.end(), [this](const auto& vote) {
    return vote && IsOutdated(*vote);
  });
}

std::optional<std::string> MaskVotes::Difference() const {
  if (PT_WEAKENED(MaskVotesMayDiffer)) return std::nullopt;
  std::map<uint64_t, const protocol::MaskVote*> first_after;
  for (const auto& vote : votes_) {
    if (!vote) continue;
    const uint64_t steps = IsOutdated(*vote) ? vote->after_steps : after_steps_;
    const protocol::MaskVote* first =
        first_after.try_emplace(steps, &*vote).first->second;
    const char* what = nullptr;
    if (vote->mask_digest != first->mask_digest ||
        vote->kept_elements != first->kept_elements) {
      what = "mask sets";
    } else if (vote->layout_digest != first->layout_digest ||
               vote->elements != first->elements) {
      what = "bucket layouts";
    }
    if (what != nullptr) {
      return absl::StrCat(what, " of ranks ", first->rank, " and ", vote->rank,
                          " differ");
    }
  }
  return std::nullopt;
}

MaskAgreement MaskVotes::Evaluate(uint64_t step) const {
  MaskAgreement result;
  result.unsettled_steps = StepsSince(unsettled_since_, step);
  std::vector<uint32_t> missing, young;
  for (uint32_t rank = 0; rank < votes_.size(); ++rank) {
    if (!votes_[rank]) {
      missing.push_back(rank);
    } else if (StepsToGo(*votes_[rank]) > 0) {
      young.push_back(rank);
    }
  }
  if (auto difference = Difference()) {
    result.state = MaskState::kUnequal;
    result.unequal_steps = StepsSince(unequal_since_, step);
    result.reason = *difference;
    return result;
  }
  if (!missing.empty()) {
    result.reason = absl::StrCat("no mask vote yet from ", RankList(missing));
    return result;
  }
  if (AnyOutdated()) {
    result.state = MaskState::kSettling;
    result.reason = absl::StrCat("mask sets that move, not settled yet at ",
                                 RankList(young));
    return result;
  }
  result.complete = true;
  const protocol::MaskVote& vote = *votes_[0];
  result.mask_digest = vote.mask_digest;
  result.layout_digest = vote.layout_digest;
  result.kept_elements = vote.kept_elements;
  result.elements = vote.elements;
  if (vote.mask_digest.empty()) {
    result.state = MaskState::kNone;
    result.reason = "no masks voted: all elements are sent";
  } else if (!young.empty()) {
    result.state = MaskState::kSettling;
    result.reason =
        absl::StrCat("equal mask sets, not settled yet at ", RankList(young));
  } else {
    result.state = MaskState::kStable;
    result.reason = absl::StrCat(
        "mask set ", vote.mask_digest.Short(), " is equal and settled at ",
        votes_.size() == 1 ? "the only trainer"
                           : absl::StrCat("all ", votes_.size(), " trainers"));
  }
  return result;
}

VoteCount MaskVotes::Count() const {
  using Wanted = std::pair<protocol::Digest, protocol::Digest>;
  std::map<Wanted, VoteCount> by_wanted;
  VoteCount all;
  for (const auto& vote : votes_) {
    if (!vote) {
      ++all.missing;
      continue;
    }
    ++all.against;
    if (vote->mask_digest.empty()) continue;
    VoteCount& same = by_wanted[{vote->mask_digest, vote->layout_digest}];
    ++(StepsToGo(*vote) > 0 ? same.settling : same.in_favour);
  }
  VoteCount most;
  for (const auto& [wanted, count] : by_wanted) {
    if (count.in_favour + count.settling > most.in_favour + most.settling) {
      most = count;
    }
  }
  all.in_favour = most.in_favour;
  all.settling = most.settling;
  all.against -= most.in_favour + most.settling;
  return all;
}

std::optional<MaskProgress> MaskVotes::Progress() const {
  const protocol::MaskVote* last = nullptr;     // To settle.
  const protocol::MaskVote* changed = nullptr;  // The newest change.
  for (const auto& vote : votes_) {
    if (!vote || (vote->mask_digest.empty() && !vote->changed_step)) continue;
    if (last == nullptr || StepsToGo(*vote) > StepsToGo(*last)) last = &*vote;
    if (changed == nullptr || vote->changed_step > changed->changed_step) {
      changed = &*vote;
    }
  }
  if (last == nullptr) return std::nullopt;
  return MaskProgress{last->rank, last->steps_unchanged, last->settle_steps,
                      changed->changed_step, changed->moved};
}

std::string MaskVotes::UnsettledText() const {
  constexpr size_t kShown = 3;
  // Ranks by what is said of them: mostly all say the same.
  std::map<std::string, std::vector<uint32_t>> said;
  bool others = false;
  for (const auto& vote : votes_) {
    if (!vote || StepsToGo(*vote) == 0) continue;
    const std::string text = absl::StrCat(
        " unchanged for ", vote->steps_unchanged, " of ", vote->settle_steps,
        " steps",
        vote->moved.empty() ? "" : absl::StrCat(" (", vote->moved, ")"));
    if (said.size() < kShown || said.count(text) > 0) {
      said[text].push_back(vote->rank);
    } else {
      others = true;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [text, ranks] : said) {
    parts.push_back(absl::StrCat(RankList(ranks), text));
  }
  if (others) parts.push_back("and other ranks");
  return absl::StrJoin(parts, ", ");
}

std::optional<uint32_t> MaskVotes::OutsideOf(
    const protocol::Digest& mask_digest,
    const protocol::Digest& layout_digest) const {
  for (const auto& vote : votes_) {
    if (!vote || vote->inside_decision) continue;
    if (vote->mask_digest != mask_digest ||
        vote->layout_digest != layout_digest) {
      return vote->rank;
    }
  }
  return std::nullopt;
}

}  // namespace pactrain::coordinator
