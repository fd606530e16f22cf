#include "agent/core/onset.h"

#include <optional>

#include "agent/core/test_pair.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using protocol::Codec;
using protocol::Decision;
using protocol::Digest;
using protocol::Mode;
using protocol::Onset;

constexpr Digest kMasks = {7, 7};
constexpr Digest kLayout = {5, 5};

Decision Compacted(uint64_t version, Digest masks = kMasks) {
  Decision decision;
  decision.version = version;
  decision.mode = Mode::kCompacted;
  decision.mask_digest = masks;
  decision.layout_digest = kLayout;
  return decision;
}

Decision Full(uint64_t version) {
  Decision decision;
  decision.version = version;
  return decision;
}

Decision Ternary(uint64_t version, Codec codec = Codec::kLevels7) {
  Decision decision = Compacted(version);
  decision.mode = Mode::kTernary;
  decision.codec = codec;
  return decision;
}

const std::vector<MaskState> kWanted = {{0, kLayout, kMasks, true},
                                        {1, kLayout, kMasks, true}};
const Onset kEveryFourth = {.activate_every = 4};
const Onset kPinned = {4, 6, Mode::kTernary, Codec::kLevels7};

TEST(Onset, OtherMasksAreDueWithMultiplesOnly) {
  EXPECT_FALSE(IsDue(kEveryFourth, {}, Compacted(2), 3));
  EXPECT_TRUE(IsDue(kEveryFourth, {}, Compacted(2), 4));
  EXPECT_TRUE(IsDue({}, {}, Compacted(2), 3));
}

TEST(Onset, WhatChangesNoMaskIsDueWithAnyStep) {
  EXPECT_TRUE(IsDue(kEveryFourth, Compacted(2), Ternary(3), 5));
  EXPECT_TRUE(IsDue(kEveryFourth, Compacted(2), Full(3), 5));
}

TEST(Onset, APinIsDueWithItsStepElseWithMultiplesAfterIt) {
  const Decision now = Compacted(2);
  for (const uint64_t next : {4, 5, 7}) {
    EXPECT_FALSE(IsDue(kPinned, now, Ternary(3), next)) << next;
  }
  EXPECT_TRUE(IsDue(kPinned, now, Ternary(3), 6));
  EXPECT_TRUE(IsDue(kPinned, now, Ternary(3), 8));
  EXPECT_TRUE(IsDue(kPinned, now, Ternary(3, Codec::kLevels5), 5));
}

TEST(Onset, SettledVotesForOtherMasksAreWorthWaitingForWhereTheyWouldBeDue) {
  EXPECT_TRUE(IsAwaited(kEveryFourth, {}, {}, kWanted, 4));
  EXPECT_FALSE(IsAwaited(kEveryFourth, {}, {}, kWanted, 5));
  EXPECT_FALSE(IsAwaited(kEveryFourth, {}, Compacted(2), kWanted, 4));
  EXPECT_FALSE(IsAwaited(kEveryFourth, Compacted(2), {}, kWanted, 4));
  EXPECT_FALSE(IsAwaited({}, {}, {}, kWanted, 4));
  std::vector<MaskState> votes = kWanted;
  votes[1].counts = false;
  EXPECT_FALSE(IsAwaited(kEveryFourth, {}, {}, votes, 4));
  votes[1] = {1, kLayout, {9, 9}, true};
  EXPECT_FALSE(IsAwaited(kEveryFourth, {}, {}, votes, 4));
}

TEST(Onset, APinIsWorthWaitingForUntilItIsMet) {
  const auto awaited = [](Decision in_force, uint64_t next) {
    return IsAwaited(kPinned, in_force, {}, kWanted, next);
  };
  EXPECT_FALSE(awaited(Compacted(2), 5));
  EXPECT_TRUE(awaited(Compacted(2), 6));
  EXPECT_FALSE(awaited(Compacted(2), 7));
  EXPECT_TRUE(awaited(Compacted(2), 8));
  EXPECT_FALSE(awaited(Ternary(3), 6));
}

TEST(Onset, APinIsNotWaitedForWhileMasksChange) {
  std::vector<MaskState> young = kWanted;
  for (MaskState& vote : young) vote.counts = false;
  EXPECT_FALSE(IsAwaited(kPinned, Compacted(2), {}, young, 6));
  EXPECT_FALSE(IsAwaited(kPinned, Compacted(2), {}, {MaskState{}}, 6));
}

TEST(Onset, APinWithMasksThatAreOlderThanTheVotesIsNotWhatIsWaitedFor) {
  Decision all = Ternary(3);
  all.mask_digest = {};
  EXPECT_TRUE(IsAwaited(kPinned, {}, all, kWanted, 6));
  EXPECT_FALSE(IsAwaited(kPinned, {}, Ternary(4), kWanted, 6));
}

TEST(Onset, WithoutMasksAPinIsWaitedForUnlessItIsOfThem) {
  const std::vector<MaskState> none = {{0, kLayout, {}}, {1, kLayout, {}}};
  EXPECT_TRUE(IsAwaited(kPinned, {}, {}, none, 6));
  const Onset compacted = {4, 6, Mode::kCompacted, Codec::kFp32};
  EXPECT_FALSE(IsAwaited(compacted, {}, {}, none, 6));
}

TEST(Onset, MasksAreNotWaitedForWhereFullIsPinned) {
  const Onset full = {4, 6, Mode::kFull, Codec::kFp32};
  EXPECT_TRUE(IsAwaited(full, {}, {}, kWanted, 4));
  EXPECT_FALSE(IsAwaited(full, {}, {}, kWanted, 8));
}

// Two agents whose decisions on masks come in force with every second step.
class OnsetPair : public Pair {
 protected:
  OnsetPair() {
    generation_.onset.activate_every = 2;
    Begin();
  }

  void Vote(int node) {
    auto vote = MakeMessage<wire::Vote>(wire::Kind::kVote);
    vote.mask_digest = {7, 7};
    vote.layout_digest = {5, 5};
    vote.kept_elements = 1;
    vote.elements = 4;
    vote.steps_unchanged = vote.settle_steps = 1;
    vote.inside_decision = 1;
    Give(*nodes_[node], TrainerMessage{1, vote});
  }
  void Prepare(int node) {
    Give(*nodes_[node], protocol::CoordinatorMessage(protocol::Prepare{
                            generation_.group, 3, Compacted(2)}));
    Deliver();
  }
  void SubmitBoth(uint64_t step, uint8_t op = 1, uint64_t version = 1) {
    wire::Submit submit = OneBucket(step, 4);
    submit.op = op;
    submit.decision_version = version;
    Submit(0, submit);
    Submit(1, submit);
    Deliver();
  }
  // With which decision the step after `step` begins; nothing: it is open.
  std::optional<uint64_t> After(uint64_t step) {
    const auto* committed = nodes_[0]->Last<wire::Committed>();
    if (committed == nullptr || committed->step != step) return std::nullopt;
    return committed->next.version;
  }
};

TEST_F(OnsetPair, AStepWaitsForTheDecisionThatIsDueAfterIt) {
  Vote(0);
  Vote(1);
  SubmitBoth(10);  // The next is the second step of gradients.
  EXPECT_EQ(After(10), std::nullopt);
  Prepare(0);
  EXPECT_EQ(After(10), std::nullopt);
  Prepare(1);
  EXPECT_EQ(After(10), 2u);
}

TEST_F(OnsetPair, ADecisionThatComesBetweenIsHeldBack) {
  SubmitBoth(10);
  Vote(0);
  Vote(1);
  Prepare(0);
  Prepare(1);
  SubmitBoth(11);
  EXPECT_EQ(After(11), 1u);
  SubmitBoth(12);
  EXPECT_EQ(After(12), 2u);
}

TEST_F(OnsetPair, ABroadcastIsNoStepOfGradients) {
  Vote(0);
  Vote(1);
  Prepare(0);
  Prepare(1);
  SubmitBoth(10, /*op=*/2);
  EXPECT_EQ(After(10), 1u);
  SubmitBoth(11);
  EXPECT_EQ(After(11), 2u);
}

TEST_F(OnsetPair, TheFirstEightStepsAndThenEveryEighthAreMeasured) {
  SubmitBoth(10, /*op=*/2);
  for (uint64_t step = 11; step < 25; ++step) SubmitBoth(step);
  const auto measured = [&] {
    std::vector<uint64_t> steps;
    for (const protocol::AgentMessage& message : x_.to_coordinator) {
      const auto* report = std::get_if<protocol::StepReport>(&message);
      if (report == nullptr) continue;
      for (const auto& noise : report->noise) steps.push_back(noise.step);
    }
    return steps;
  };
  std::vector<uint64_t> wanted = {11, 12, 13, 14, 15, 16, 17, 18};
  EXPECT_EQ(measured(), wanted);  // Told at once.
  Pass(absl::Seconds(1));
  wanted.push_back(24);
  EXPECT_EQ(measured(), wanted);
}

TEST_F(OnsetPair, AWaitInVainEndsAndIsNotRepeatedForTheSameVotes) {
  Vote(0);
  Vote(1);
  SubmitBoth(10);
  Pass(absl::Seconds(1));
  EXPECT_EQ(After(10), std::nullopt);
  Pass(absl::Seconds(2));
  EXPECT_EQ(After(10), 1u);
  SubmitBoth(11);
  SubmitBoth(12);
  EXPECT_EQ(After(12), 1u);
  SubmitBoth(13);
  Vote(0);
  Vote(1);
  SubmitBoth(14);
  EXPECT_EQ(After(14), std::nullopt);
}

}  // namespace
}  // namespace pactrain::agent
