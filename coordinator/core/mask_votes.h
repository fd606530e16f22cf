// Finds the mask set that all trainers of a generation have settled on.
//
// A trainer's newest vote counts. The mask set is stable once every trainer has
// voted for the same mask set and bucket layout, each for at least its own
// settle_steps; any other vote starts anew.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_MASK_VOTES_H_
#define PACTRAIN_COORDINATOR_CORE_MASK_VOTES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "protocol/control.h"

namespace pactrain::coordinator {

enum class MaskState {
  kMissing,   // Not all trainers have voted.
  kNone,      // All have, and none has masks.
  kUnequal,   // Mask sets or layouts differ.
  kSettling,  // Equal as far as they are known, not old enough everywhere.
  kStable,
};

struct MaskAgreement {
  MaskState state = MaskState::kMissing;
  // kSettling: all have voted after the newest step. Not so while agents tell
  // votes for masks that move, one before the other.
  bool complete = false;
  // The rest up to `reason` is set for kStable and, if complete, for kSettling.
  protocol::Digest mask_digest;
  protocol::Digest layout_digest;
  uint64_t kept_elements = 0;
  uint64_t elements = 0;
  uint64_t unequal_steps = 0;  // Steps since the votes became unequal.
  // Steps since all were last stable or without masks, once all have voted.
  uint64_t unsettled_steps = 0;
  std::string reason;  // "mask sets of ranks 0 and 3 differ"
};

// How far the mask sets of all trainers have settled.
struct MaskProgress {
  // Of the trainer that has the most steps to go, as it said last.
  uint32_t rank = 0;
  uint32_t steps_unchanged = 0;
  uint32_t settle_steps = 0;  // That make its vote count.
  // Of the last change of any trainer; none: there was none since the
  // generation began.
  std::optional<uint64_t> changed_step;
  std::string moved;  // Which parameters' masks moved most in it.
};

// Trainers by their newest vote. The mask set that most have voted for is the
// one that the others are against, as is who wants none.
struct VoteCount {
  uint32_t in_favour = 0;
  uint32_t settling = 0;  // In favour, not old enough yet to count.
  uint32_t against = 0;
  uint32_t missing = 0;
};

class MaskVotes {
 public:
  explicit MaskVotes(uint32_t world_size) : votes_(world_size) {}

  // Counts a vote made after `step` committed steps. True: it says something
  // new (another mask set or layout than this trainer's last vote).
  // InvalidArgument: `vote.rank` is not below the world size.
  absl::StatusOr<bool> Add(const protocol::MaskVote& vote, uint64_t step);

  // Exactly that is its trainer's last vote.
  bool Has(const protocol::MaskVote& vote) const {
    return vote.rank < votes_.size() && votes_[vote.rank] == vote;
  }

  // What the votes say after `step` committed steps.
  MaskAgreement Evaluate(uint64_t step) const;

  VoteCount Count() const;

  // Nothing: nobody has voted for masks.
  std::optional<MaskProgress> Progress() const;

  // "ranks 0, 1 unchanged for 3 of 10 steps (fc.weight 12 elements moved)" of
  // those whose masks have not settled; empty: of none.
  std::string UnsettledText() const;

  // Of the newest vote: steps of gradients that were committed before it.
  uint64_t AfterSteps() const { return after_steps_; }

  // A trainer whose newest mask set is neither the one with these digests nor
  // inside it. Nothing: there is none.
  std::optional<uint32_t> OutsideOf(
      const protocol::Digest& mask_digest,
      const protocol::Digest& layout_digest) const;

 private:
  // Its trainer has made more steps by now and votes after each, as its masks
  // have not settled: what it has after the newest step is not known yet.
  // Agents tell votes each when they can, so a mask set that moves at every
  // step would look like two of them.
  bool IsOutdated(const protocol::MaskVote& vote) const;
  bool AnyOutdated() const;
  // Of those after the same step; of those that are not outdated.
  std::optional<std::string> Difference() const;

  std::vector<std::optional<protocol::MaskVote>> votes_;  // By rank.
  uint64_t after_steps_ = 0;
  std::optional<uint64_t> unequal_since_;
  std::optional<uint64_t> unequal_at_;  // When they were seen to differ last.
  std::optional<uint64_t> unsettled_since_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_MASK_VOTES_H_
