#include "coordinator/core/mask_votes.h"

#include "absl/strings/str_cat.h"
#include "base/weakened.h"
#include "coordinator/core/rank_list.h"

namespace pactrain::coordinator {

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
  if (!Difference()) {
    unequal_since_.reset();
  } else if (!unequal_since_) {
    unequal_since_ = step;
  }
  return changed;
}

std::optional<std::string> MaskVotes::Difference() const {
  if (PT_WEAKENED(MaskVotesMayDiffer)) return std::nullopt;
  const protocol::MaskVote* first = nullptr;
  for (const auto& vote : votes_) {
    if (!vote) continue;
    if (first == nullptr) first = &*vote;
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
  std::vector<uint32_t> missing, young;
  for (uint32_t rank = 0; rank < votes_.size(); ++rank) {
    if (!votes_[rank]) {
      missing.push_back(rank);
    } else if (votes_[rank]->steps_unchanged < votes_[rank]->settle_steps) {
      young.push_back(rank);
    }
  }
  if (auto difference = Difference()) {
    result.state = MaskState::kUnequal;
    // `step` restarts at 0 with the coordinator while agents have not reported.
    result.unequal_steps = step > *unequal_since_ ? step - *unequal_since_ : 0;
    result.reason = *difference;
    return result;
  }
  if (!missing.empty()) {
    result.reason = absl::StrCat("no mask vote yet from ", RankList(missing));
    return result;
  }
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
    result.reason = absl::StrCat("mask set ", vote.mask_digest.Short(),
                                 " is equal and settled at all ", votes_.size(),
                                 " trainers");
  }
  return result;
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
