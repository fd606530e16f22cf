#include "coordinator/core/mask_votes.h"

#include <algorithm>
#include <random>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using protocol::MaskVote;
using ::testing::HasSubstr;

MaskVote Make(uint32_t rank, uint64_t mask, uint32_t unchanged = 3,
              uint32_t settle = 3, uint64_t layout = 1,
              uint64_t after_steps = 0) {
  MaskVote vote;
  vote.after_steps = after_steps;
  vote.rank = rank;
  vote.mask_digest = {0, mask};
  vote.layout_digest = {1, layout};
  vote.steps_unchanged = unchanged;
  vote.settle_steps = settle;
  vote.kept_elements = mask == 0 ? 100 : 30;
  vote.elements = 100;
  return vote;
}

TEST(MaskVotes, StableWhenAllAreEqualAndSettled) {
  MaskVotes votes(2);
  EXPECT_OK(votes.Add(Make(0, 5), 0));
  EXPECT_EQ(votes.Evaluate(0).state, MaskState::kMissing);
  EXPECT_EQ(votes.Evaluate(0).reason, "no mask vote yet from rank 1");
  EXPECT_OK(votes.Add(Make(1, 5), 0));
  const MaskAgreement agreed = votes.Evaluate(0);
  EXPECT_EQ(agreed.state, MaskState::kStable);
  EXPECT_EQ(agreed.mask_digest, (protocol::Digest{0, 5}));
  EXPECT_EQ(agreed.kept_elements, 30);
}

TEST(MaskVotes, YoungVotesSettleFirst) {
  MaskVotes votes(2);
  EXPECT_OK(votes.Add(Make(0, 5, 3), 0));
  EXPECT_OK(votes.Add(Make(1, 5, 2), 0));
  EXPECT_EQ(votes.Evaluate(0).state, MaskState::kSettling);
  EXPECT_OK(votes.Add(Make(1, 5, 3), 1));
  EXPECT_EQ(votes.Evaluate(1).state, MaskState::kStable);
}

TEST(MaskVotes, RepeatedEqualVoteIsNoNews) {
  MaskVotes votes(2);
  EXPECT_TRUE(*votes.Add(Make(0, 5), 0));
  EXPECT_FALSE(*votes.Add(Make(0, 5), 0));
  EXPECT_TRUE(*votes.Add(Make(0, 6), 0));
  EXPECT_TRUE(*votes.Add(Make(0, 6, 3, 3, /*layout=*/2), 0));
}

TEST(MaskVotes, UnequalVotesCountTheirSteps) {
  MaskVotes votes(2);
  EXPECT_OK(votes.Add(Make(0, 5), 10));
  EXPECT_OK(votes.Add(Make(1, 6), 12));
  EXPECT_EQ(votes.Evaluate(12).state, MaskState::kUnequal);
  EXPECT_EQ(votes.Evaluate(12).reason, "mask sets of ranks 0 and 1 differ");
  EXPECT_EQ(votes.Evaluate(40).unequal_steps, 28);
  EXPECT_OK(votes.Add(Make(1, 5), 40));
  EXPECT_EQ(votes.Evaluate(40).state, MaskState::kStable);
  EXPECT_OK(votes.Add(Make(1, 6), 50));
  EXPECT_EQ(votes.Evaluate(51).unequal_steps, 1);
}

TEST(MaskVotes, LayoutsMustAgreeToo) {
  MaskVotes votes(2);
  EXPECT_OK(votes.Add(Make(0, 5, 3, 3, 1), 0));
  EXPECT_OK(votes.Add(Make(1, 5, 3, 3, 2), 0));
  EXPECT_EQ(votes.Evaluate(0).reason, "bucket layouts of ranks 0 and 1 differ");
}

TEST(MaskVotes, WhatMostVotedForIsCounted) {
  MaskVotes votes(6);
  EXPECT_EQ(votes.Count().missing, 6u);
  EXPECT_OK(votes.Add(Make(0, 6), 0));
  EXPECT_OK(votes.Add(Make(1, 5), 0));
  EXPECT_OK(votes.Add(Make(2, 5, 2), 0));
  MaskVote none = Make(3, 0);
  none.mask_digest = {};
  EXPECT_OK(votes.Add(none, 0));
  EXPECT_OK(votes.Add(Make(4, 5, 3, 3, /*layout=*/2), 0));
  const VoteCount count = votes.Count();
  EXPECT_EQ(count.in_favour, 1u);
  EXPECT_EQ(count.settling, 1u);
  EXPECT_EQ(count.against, 3u);
  EXPECT_EQ(count.missing, 1u);
}

TEST(MaskVotes, NoMasksAtAllIsAnAgreement) {
  MaskVotes votes(2);
  EXPECT_OK(votes.Add(Make(0, 0), 0));
  EXPECT_OK(votes.Add(Make(1, 0), 0));
  EXPECT_EQ(votes.Evaluate(0).state, MaskState::kNone);
  EXPECT_EQ(votes.Evaluate(0).reason, "no masks voted: all elements are sent");
}

TEST(MaskVotes, ARankOutOfRangeIsRefused) {
  MaskVotes votes(2);
  EXPECT_THAT(
      votes.Add(Make(2, 5), 0),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2")));
}

TEST(MaskVotes, OutsideIsSaidOnlyOfAnotherMaskSet) {
  MaskVotes votes(2);
  MaskVote vote = Make(0, 5);
  vote.inside_decision = false;
  EXPECT_OK(votes.Add(vote, 0));
  EXPECT_FALSE(votes.OutsideOf({0, 5}, {1, 1}).has_value());
  EXPECT_EQ(votes.OutsideOf({0, 6}, {1, 1}), 0);
  EXPECT_EQ(votes.OutsideOf({0, 5}, {1, 2}), 0);
}

MaskVote Moved(uint32_t rank, uint64_t step, const std::string& what,
               uint32_t unchanged = 1) {
  MaskVote vote = Make(rank, 5, unchanged, /*settle=*/10);
  vote.changed_step = step;
  vote.moved = what;
  return vote;
}

TEST(MaskVotes, ProgressIsThatOfTheRankWithTheMostStepsToGo) {
  MaskVotes votes(3);
  EXPECT_FALSE(votes.Progress().has_value());
  EXPECT_OK(votes.Add(Make(0, 0), 0));
  EXPECT_FALSE(votes.Progress().has_value());
  EXPECT_OK(votes.Add(Make(0, 5, 12, 10), 0));
  EXPECT_OK(votes.Add(Moved(1, 30, "fc 2", 7), 0));
  EXPECT_OK(votes.Add(Moved(2, 28, "fc 9", 8), 0));
  const MaskProgress progress = *votes.Progress();
  EXPECT_EQ(progress.rank, 1);
  EXPECT_EQ(progress.steps_unchanged, 7);
  EXPECT_EQ(progress.settle_steps, 10);
  EXPECT_EQ(progress.changed_step, 30);
  EXPECT_EQ(progress.moved, "fc 2");
}

TEST(MaskVotes, UnsettledStepsAreCountedFromTheLastStableVotesOn) {
  MaskVotes votes(2);
  EXPECT_OK(votes.Add(Make(0, 5, 0), 10));
  EXPECT_EQ(votes.Evaluate(20).unsettled_steps, 0);  // Not all have voted.
  EXPECT_OK(votes.Add(Make(1, 5, 0), 20));
  EXPECT_OK(votes.Add(Make(1, 6, 0), 25));  // Moves on.
  EXPECT_EQ(votes.Evaluate(50).unsettled_steps, 30);
  EXPECT_OK(votes.Add(Make(0, 6), 50));
  EXPECT_OK(votes.Add(Make(1, 6), 50));
  EXPECT_EQ(votes.Evaluate(60).unsettled_steps, 0);
  EXPECT_OK(votes.Add(Make(1, 7, 0), 70));
  EXPECT_EQ(votes.Evaluate(71).unsettled_steps, 1);
}

TEST(MaskVotes, ThoseThatHaveNotSettledAreNamedWithWhatMoved) {
  MaskVotes votes(6);
  EXPECT_EQ(votes.UnsettledText(), "");
  EXPECT_OK(votes.Add(Moved(0, 3, "fc.weight 12 elements moved"), 0));
  EXPECT_OK(votes.Add(Moved(2, 3, "fc.weight 12 elements moved"), 0));
  EXPECT_OK(votes.Add(Moved(1, 3, "", 10), 0));
  EXPECT_EQ(votes.UnsettledText(),
            "ranks 0, 2 unchanged for 1 of 10 steps (fc.weight 12 elements "
            "moved)");
  for (uint32_t rank : {3u, 4u, 5u}) {
    EXPECT_OK(votes.Add(Moved(rank, 3, "", rank), 0));
  }
  EXPECT_THAT(votes.UnsettledText(), HasSubstr("rank 3 unchanged for 3 of 10"));
  EXPECT_THAT(votes.UnsettledText(), ::testing::EndsWith("and other ranks"));
}

// Two agents' votes never come at the same time, and one may leave steps out.
TEST(MaskVotes, VotesAfterDifferentStepsAreNotCompared) {
  MaskVotes votes(2);
  for (uint32_t step = 1; step < 199; ++step) {
    const uint32_t other = step / 3 * 3 + 1;  // Ahead or behind.
    EXPECT_OK(votes.Add(Make(0, step, 0, 3, 1, step), step));
    EXPECT_OK(votes.Add(Make(1, other, 0, 3, 1, other), step));
    const MaskAgreement agreement = votes.Evaluate(step);
    EXPECT_EQ(agreement.state, MaskState::kSettling) << step;
    EXPECT_EQ(agreement.unequal_steps, 0u);
  }
  EXPECT_EQ(votes.Evaluate(198).reason,
            "mask sets that move, not settled yet at ranks 0, 1");
}

TEST(MaskVotes, MaskSetsThatMoveAndDifferAreUnequalAllTheSame) {
  MaskVotes votes(2);
  for (uint32_t step = 1; step < 60; ++step) {
    EXPECT_OK(votes.Add(Make(0, step, 0, 3, 1, step), step));
    EXPECT_OK(votes.Add(Make(1, step + 1000, 0, 3, 1, step), step));
    EXPECT_EQ(votes.Evaluate(step).state, MaskState::kUnequal);
    EXPECT_EQ(votes.Evaluate(step).unequal_steps, step - 1);
  }
}

// As where a trainer votes twice after a step, and its agent tells both.
TEST(MaskVotes, ADifferenceThatWasLongAgoDoesNotCount) {
  MaskVotes votes(2);
  for (uint32_t step = 1; step < 1000; ++step) {
    EXPECT_OK(votes.Add(Make(0, step, 0, 3, 1, 2 * step), 2 * step));
    EXPECT_OK(votes.Add(Make(1, step, 0, 3, 1, 2 * step + 1), 2 * step + 1));
    if (step % 300 != 0) continue;
    EXPECT_OK(votes.Add(Make(0, 1, 0, 3, 1, 2 * step + 1), 2 * step + 1));
    EXPECT_EQ(votes.Evaluate(2 * step + 1).state, MaskState::kUnequal);
    EXPECT_EQ(votes.Evaluate(2 * step + 1).unequal_steps, 0u);
  }
}

TEST(MaskVotes, VotesThatAreOutdatedAreComparedWithEachOther) {
  MaskVotes votes(3);
  EXPECT_OK(votes.Add(Make(0, 5, 0, 3, 1, 10), 10));
  EXPECT_OK(votes.Add(Make(1, 7, 0, 3, 1, 11), 11));
  EXPECT_OK(votes.Add(Make(2, 6, 0, 3, 1, 10), 11));
  EXPECT_EQ(votes.Evaluate(11).reason, "mask sets of ranks 0 and 2 differ");
}

// It votes no more until its masks change.
TEST(MaskVotes, ASettledVoteIsComparedWithAllLaterOnes) {
  MaskVotes votes(2);
  EXPECT_OK(votes.Add(Make(0, 5, 3, 3, 1, 10), 10));
  EXPECT_OK(votes.Add(Make(1, 6, 0, 3, 1, 20), 20));
  EXPECT_EQ(votes.Evaluate(20).state, MaskState::kUnequal);
  EXPECT_OK(votes.Add(Make(1, 5, 0, 3, 1, 21), 21));
  EXPECT_EQ(votes.Evaluate(21).state, MaskState::kSettling);
  EXPECT_OK(votes.Add(Make(1, 5, 3, 3, 1, 24), 24));
  EXPECT_EQ(votes.Evaluate(24).state, MaskState::kStable);
}

// The same by brute force over all newest votes, with no state kept.
MaskState Model(const std::vector<std::optional<MaskVote>>& newest,
                uint64_t steps) {
  bool missing = false, none = true, young = false;
  // Which are of the newest step, or hold until they are taken back.
  const auto counts = [&](const MaskVote& vote) {
    return vote.after_steps == steps || vote.after_steps == 0 ||
           vote.steps_unchanged >= vote.settle_steps;
  };
  bool outdated = false;
  for (const auto& a : newest) {
    if (!a) {
      missing = true;
      continue;
    }
    outdated = outdated || !counts(*a);
    for (const auto& b : newest) {
      const bool same_step =
          b && (counts(*a) ? counts(*b)
                           : !counts(*b) && b->after_steps == a->after_steps);
      if (same_step && (a->mask_digest != b->mask_digest ||
                        a->layout_digest != b->layout_digest)) {
        return MaskState::kUnequal;
      }
    }
    none = none && a->mask_digest.empty();
    young = young || a->steps_unchanged < a->settle_steps;
  }
  if (missing) return MaskState::kMissing;
  if (outdated) return MaskState::kSettling;
  if (none) return MaskState::kNone;
  return young ? MaskState::kSettling : MaskState::kStable;
}

TEST(MaskVotes, AgreesWithADumbModelOnRandomVotes) {
  std::mt19937 random(1);
  const auto below = [&](uint32_t n) {
    return static_cast<uint32_t>(random() % n);
  };
  int seen[5] = {};
  for (int round = 0; round < 2000; ++round) {
    const uint32_t world = 1 + below(4);
    MaskVotes votes(world);
    std::vector<std::optional<MaskVote>> newest(world);
    uint64_t steps = 0;
    for (int i = 0; i < 12; ++i) {
      // The layout changes seldom, so that agreements are common enough.
      const MaskVote vote = Make(below(world), below(2), below(4), 1 + below(3),
                                 1 + below(8) / 7, i / 3 + below(2));
      ASSERT_OK(votes.Add(vote, i));
      newest[vote.rank] = vote;
      steps = std::max(steps, vote.after_steps);
      const MaskState state = votes.Evaluate(i).state;
      ASSERT_EQ(state, Model(newest, steps))
          << "round " << round << " vote " << i;
      ++seen[static_cast<int>(state)];
    }
  }
  for (int count : seen) EXPECT_GT(count, 100);
}

}  // namespace
}  // namespace pactrain::coordinator
