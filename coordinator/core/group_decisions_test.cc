// What travels: votes, PREPARE, refusals and revokes in all orders.
#include "base/status_matchers.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/test_cluster.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::Mode;
using protocol::Prepare;
using protocol::Revoke;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// Four trainers at two agents in two sites, in a running generation.
class DecisionTest : public ::testing::Test {
 protected:
  DecisionTest() { t_.FormFour(); }

  void VoteAll(uint64_t mask, bool inside = true) {
    for (uint32_t rank = 0; rank < 4; ++rank) VoteOne(rank, mask, inside);
  }
  void VoteOne(uint32_t rank, uint64_t mask, bool inside = true) {
    t_.Vote(rank < 2 ? "a" : "b", rank, mask, /*steps_unchanged=*/1, inside);
  }
  void ReportAll(uint64_t version, uint64_t count) {
    t_.Report("a", version, count);
    t_.Report("b", version, count);
  }
  // Until COMPACTED with `mask` is in force as version 2.
  void Compact(uint64_t mask) {
    VoteAll(mask);
    ReportAll(2, 10);
    t_.Clear();
  }
  uint64_t Prepared() const {
    const auto prepare = t_.Got<Prepare>("a");
    return prepare ? prepare->decision.version : 0;
  }

  TestCluster t_;
};

TEST_F(DecisionTest, StableVotesPrepareCompacted) {
  VoteAll(11);
  const auto prepare = t_.Got<Prepare>("b");
  ASSERT_TRUE(prepare.has_value());
  EXPECT_EQ(prepare->generation, 1);
  EXPECT_EQ(prepare->decision.version, 2);
  EXPECT_EQ(prepare->decision.mode, Mode::kCompacted);
  EXPECT_EQ(prepare->decision.mask_digest, (protocol::Digest{11, 11}));
  EXPECT_THAT(prepare->decision.reason, HasSubstr("keeps 30.0 %"));
  EXPECT_EQ(t_.Snapshot().in_force->mode, Mode::kFull);
  ReportAll(2, 1);
  EXPECT_EQ(t_.Snapshot().in_force->version, 2);
  EXPECT_FALSE(t_.Snapshot().prepared.has_value());
  EXPECT_EQ(t_.Snapshot().kept_elements, 30);
}

// What four trainers declare as they attach.
class DeclaredTest : public ::testing::Test {
 protected:
  DeclaredTest() { t_.declared = {{11, 11}, {1, 1}, 30, 100}; }

  // Rank 3 with `mask`, the others with 11.
  protocol::Decision FirstOf(uint64_t mask) {
    t_.Connect("a", "x");
    t_.Connect("b", "y");
    for (uint32_t rank = 0; rank < 3; ++rank) t_.Join("a", rank, 4);
    t_.declared.mask_digest = {mask, mask};
    t_.Join("b", 3, 4);
    return t_.Got<protocol::StartGeneration>("b")->generation.decision;
  }

  TestCluster t_;
};

TEST_F(DeclaredTest, AGenerationBeginsWithTheMasksThatAllDeclare) {
  const protocol::Decision first = FirstOf(11);
  EXPECT_EQ(first.version, 1);
  EXPECT_EQ(first.mode, Mode::kCompacted);
  EXPECT_EQ(first.mask_digest, (protocol::Digest{11, 11}));
  EXPECT_THAT(first.reason, HasSubstr("keeps 30.0 %"));
  for (uint32_t rank = 0; rank < 4; ++rank) {
    t_.Vote(rank < 3 ? "a" : "b", rank, 11);
  }
  EXPECT_FALSE(t_.Got<Prepare>("a").has_value());
}

TEST_F(DeclaredTest, ItBeginsFullWhereARankDeclaresOthers) {
  const protocol::Decision first = FirstOf(12);
  EXPECT_EQ(first.mode, Mode::kFull);
  EXPECT_THAT(first.reason, HasSubstr("until a mask set is agreed"));
}

TEST_F(DeclaredTest, ItBeginsFullWhereARankDeclaresNothing) {
  t_.declared.elements = 0;
  EXPECT_EQ(FirstOf(11).mode, Mode::kFull);
}

TEST_F(DeclaredTest, AScriptsPinIsPreparedOnceItsElementsAreInForce) {
  t_.onset = {4, 20, Mode::kTernary, protocol::Codec::kLevels7};
  const protocol::Decision first = FirstOf(11);
  EXPECT_EQ(first.mode, Mode::kCompacted);
  EXPECT_THAT(first.reason, EndsWith("then pinned to TERNARY 7 levels by the "
                                     "script from its step 20 on"));
  EXPECT_EQ(t_.Got<protocol::StartGeneration>("a")->generation.onset, t_.onset);
  t_.Report("a", 1, 1);
  const auto prepare = t_.Got<Prepare>("a");
  ASSERT_TRUE(prepare.has_value());
  EXPECT_EQ(prepare->decision.mode, Mode::kTernary);
  EXPECT_EQ(prepare->decision.codec, protocol::Codec::kLevels7);
  EXPECT_EQ(prepare->decision.mask_digest, (protocol::Digest{11, 11}));
}

// Masks that are voted for after `steps` steps, while others are in force.
Mode ModeOfMasksAfter(TestCluster& t, uint64_t steps) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    protocol::MaskVote vote{t.group, 1, rank, {5, 5}, {22, 22},
                            1,       1, true, 20,     100};
    vote.after_steps = steps;
    t.Say(rank < 3 ? "a" : "b", vote);
  }
  const auto prepare = t.Got<Prepare>("a");
  return prepare ? prepare->decision.mode : Mode::kFull;
}

TEST_F(DeclaredTest, MasksThatComeInForceNoEarlierThanAPinComeWithIt) {
  t_.onset = {4, 12, Mode::kTernary, protocol::Codec::kLevels7};
  FirstOf(11);
  t_.Clear();
  EXPECT_EQ(ModeOfMasksAfter(t_, 7), Mode::kTernary);  // For step 12.
}

TEST_F(DeclaredTest, MasksThatComeInForceBeforeAPinAreExactUntilThen) {
  t_.onset = {4, 12, Mode::kTernary, protocol::Codec::kLevels7};
  FirstOf(11);
  t_.Clear();
  EXPECT_EQ(ModeOfMasksAfter(t_, 6), Mode::kCompacted);  // For step 8.
}

TEST_F(DeclaredTest, AScriptsPinFromTheFirstStepIsWhatItBeginsWith) {
  t_.onset = {4, 1, Mode::kTernary, protocol::Codec::kLevels7};
  EXPECT_EQ(FirstOf(11).codec, protocol::Codec::kLevels7);
}

TEST_F(DecisionTest, WithoutMasksItStaysFullAndSaysSo) {
  VoteAll(0);
  EXPECT_EQ(Prepared(), 0);
  EXPECT_EQ(t_.Snapshot().reason,
            "no masks voted: all elements are sent; not TERNARY: waiting for "
            "the exchange is not measured yet");
}

TEST_F(DecisionTest, RepeatedVotesPrepareOnce) {
  VoteAll(11);
  VoteAll(11);
  EXPECT_EQ(Prepared(), 2);
  EXPECT_EQ(t_.records().size(), 3);  // Formed, stable, decision.
}

TEST_F(DecisionTest, ANewSetGoesFromCompactedToCompacted) {
  Compact(11);
  VoteOne(0, 12);
  VoteOne(1, 12);
  EXPECT_EQ(Prepared(), 0);  // All inside: lossless, so it may stay.
  VoteOne(2, 12);
  VoteOne(3, 12);
  EXPECT_EQ(Prepared(), 3);
  EXPECT_EQ(t_.Got<Prepare>("a")->decision.mode, Mode::kCompacted);
}

TEST_F(DecisionTest, ASetOutsideTheAgreedOneGoesBackToFull) {
  Compact(11);
  VoteOne(3, 12, /*inside=*/false);
  EXPECT_EQ(t_.Got<Prepare>("a")->decision.mode, Mode::kFull);
  EXPECT_THAT(t_.Got<Prepare>("a")->decision.reason, HasSubstr("rank 3"));
  ReportAll(3, 12);
  for (uint32_t rank : {0, 1, 2}) VoteOne(rank, 12, /*inside=*/false);
  EXPECT_EQ(Prepared(), 4);
  EXPECT_EQ(t_.Got<Prepare>("a")->decision.mode, Mode::kCompacted);
}

TEST_F(DecisionTest, VotesUnequalForAnEpochGoBackToFull) {
  Compact(11);
  VoteOne(3, 12);
  ReportAll(2, 60);
  EXPECT_EQ(Prepared(), 0);
  ReportAll(2, 61);
  ASSERT_EQ(Prepared(), 3);
  EXPECT_EQ(t_.Got<Prepare>("a")->decision.mode, Mode::kFull);
  EXPECT_THAT(t_.Got<Prepare>("a")->decision.reason,
              HasSubstr("more than 50 steps"));
}

TEST_F(DecisionTest, MasksThatDoNotSettleWithinTwoEpochsAreNamed) {
  const auto vote_all = [&](uint64_t mask, uint64_t step) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      protocol::MaskVote vote{t_.group, 1,  rank, {1, 1}, {mask, mask},
                              2,        10, true, 30,     100};
      if (rank == 3) vote.steps_unchanged = 1;
      vote.moved = "fc.weight 12 elements moved";
      vote.changed_step = step;
      t_.Say(rank < 2 ? "a" : "b", vote);
    }
  };
  vote_all(11, 0);
  for (uint64_t step : {40, 80}) {
    ReportAll(1, step);
    vote_all(step, step);
  }
  ReportAll(1, 100);
  EXPECT_EQ(t_.Snapshot().reason,
            "equal mask sets, not settled yet at ranks 0, 1, 2, 3");
  ReportAll(1, 101);
  EXPECT_THAT(t_.Snapshot().reason,
              EndsWith("; masks have not settled for 101 steps, more than two "
                       "epochs of 50: rank 3 unchanged for 1 of 10 steps "
                       "(fc.weight 12 elements moved), ranks 0, 1, 2 unchanged "
                       "for 2 of 10 steps (fc.weight 12 elements moved)"));
  EXPECT_EQ(t_.Snapshot().masks->changed_step, 80);
  Compact(12);
  EXPECT_THAT(t_.Snapshot().reason, Not(HasSubstr("have not settled")));
}

// One agent tells its votes before the other does.
TEST_F(DecisionTest, AMaskSetThatMovesIsOneChangeAndNoDifference) {
  Compact(11);
  const uint64_t changes = t_.Snapshot().account.mask_changes;
  for (uint64_t step = 20; step < 120; ++step) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      protocol::MaskVote vote{t_.group, 1,  rank, {1, 1}, {step, step},
                              0,        10, true, 30,     100};
      vote.after_steps = step;
      t_.Say(rank < 2 ? "a" : "b", vote);
    }
    ReportAll(2, step);
  }
  EXPECT_EQ(t_.Snapshot().account.mask_changes, changes + 100);
  EXPECT_EQ(t_.Snapshot().in_force->mode, Mode::kCompacted);
  EXPECT_EQ(Prepared(), 0);
}

TEST_F(DecisionTest, TheFirstCompactedStepIsTheOneThatAgentsReport) {
  EXPECT_FALSE(t_.Snapshot().first_compacted_step.has_value());
  protocol::StepReport report{t_.group, 1, 12, 12, 2, 0, 0, 0, 0, {}, {}};
  report.first_compacted_step = 9;
  t_.Say("a", report);
  ReportAll(2, 13);
  EXPECT_EQ(t_.Snapshot().first_compacted_step, 9);
}

TEST_F(DecisionTest, ANewLayoutNeedsANewDecision) {
  Compact(11);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    t_.Vote(rank < 2 ? "a" : "b", rank, 11, 1, true, /*layout=*/2);
  }
  ASSERT_EQ(Prepared(), 3);
  EXPECT_EQ(t_.Got<Prepare>("a")->decision.layout_digest,
            (protocol::Digest{2, 2}));
}

TEST_F(DecisionTest, ARefusedDecisionIsRevokedAndNotTriedAgainAtOnce) {
  VoteAll(11);
  t_.Answer("a", 2, true);
  t_.Answer("b", 2, false);
  EXPECT_EQ(t_.Got<Revoke>("a")->version, 2);
  EXPECT_EQ(t_.Got<Revoke>("b")->version, 2);
  t_.Clear();
  VoteAll(11);
  ReportAll(1, 49);
  EXPECT_EQ(Prepared(), 0);
  ReportAll(1, 50);
  EXPECT_EQ(Prepared(), 3);
}

TEST_F(DecisionTest, ARefusedDecisionIsTriedAgainWhenVotesChange) {
  VoteAll(11);
  t_.Answer("b", 2, false);
  VoteAll(12);
  EXPECT_EQ(Prepared(), 3);
}

TEST_F(DecisionTest, ARefusalThatLeavesDenseStepsGoesToFull) {
  Compact(11);
  VoteAll(12,
          /*inside=*/false);  // FULL first, then COMPACTED with the new set.
  const uint64_t version = Prepared();
  EXPECT_EQ(t_.Got<Prepare>("a")->decision.mode, Mode::kCompacted);
  t_.Answer("b", version, false);
  EXPECT_EQ(Prepared(), version + 1);
  EXPECT_EQ(t_.Got<Prepare>("a")->decision.mode, Mode::kFull);
}

TEST_F(DecisionTest, VotesGoingBackRevokeWhatIsPrepared) {
  Compact(11);
  VoteAll(12);
  EXPECT_EQ(Prepared(), 3);
  VoteAll(11);
  EXPECT_EQ(t_.Got<Revoke>("a")->version, 3);
  EXPECT_EQ(t_.Snapshot().in_force->version, 2);
  EXPECT_FALSE(t_.Snapshot().prepared.has_value());
}

TEST_F(DecisionTest, ARevokeThatCameTooLateIsCorrected) {
  Compact(11);
  VoteAll(12);
  VoteAll(11);       // Revokes 3,
  ReportAll(3, 20);  // but it was in force already.
  EXPECT_EQ(Prepared(), 4);
  EXPECT_EQ(t_.Got<Prepare>("a")->decision.mask_digest,
            (protocol::Digest{11, 11}));
}

TEST_F(DecisionTest, ALateRefusalOfAnOlderVersionIsIgnored) {
  VoteAll(11);
  VoteAll(12);  // Replaces version 2 by 3.
  EXPECT_EQ(Prepared(), 3);
  t_.Answer("b", 2, false);
  EXPECT_FALSE(t_.Got<Revoke>("a").has_value());
  EXPECT_EQ(t_.Snapshot().prepared->version, 3);
}

TEST_F(DecisionTest, PrepareIsRepeatedOnANewStream) {
  VoteAll(11);
  t_.Clear();
  t_.Connect("b", "y", /*same_process=*/true);
  ASSERT_TRUE(t_.Got<Prepare>("b").has_value());
  EXPECT_EQ(t_.Got<Prepare>("b")->decision.version, 2);
}

TEST_F(DecisionTest, ARestartKeepsTheDecisionInForce) {
  Compact(11);
  t_.RestartCoordinator();
  t_.Connect("a", "x", /*same_process=*/true);
  t_.Rejoin("a", 0, 1);
  t_.Rejoin("a", 1, 1);
  t_.Connect("b", "y", /*same_process=*/true);
  t_.Rejoin("b", 2, 1);
  t_.Rejoin("b", 3, 1);
  ReportAll(2, 12);
  t_.Clear();
  VoteAll(11);
  EXPECT_EQ(t_.Snapshot().in_force->version, 2);
  EXPECT_EQ(Prepared(), 0);
  VoteAll(12);
  EXPECT_EQ(Prepared(), 3);
}

TEST_F(DecisionTest, AfterARestartNothingIsDecidedBeforeTheFirstReport) {
  Compact(11);
  t_.RestartCoordinator();
  t_.Connect("a", "x", /*same_process=*/true);
  t_.Connect("b", "y", /*same_process=*/true);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    t_.Rejoin(rank < 2 ? "a" : "b", rank, 1);
  }
  t_.Clear();
  VoteAll(11);
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Prepared(), 0);  // It may be in force already.
  EXPECT_EQ(t_.Snapshot().in_force, std::nullopt);
  ReportAll(2, 12);
  EXPECT_EQ(Prepared(), 0);
  EXPECT_EQ(t_.Snapshot().in_force->mode, Mode::kCompacted);
}

TEST_F(DecisionTest, ARestartWithAPreparedDecisionRepeatsIt) {
  VoteAll(11);
  t_.RestartCoordinator();
  t_.Connect("a", "x", /*same_process=*/true);
  EXPECT_EQ(Prepared(), 2);
}

TEST_F(DecisionTest, VotesThatAreNotTheAgentsToGiveAreIgnored) {
  t_.Say("a",
         protocol::MaskVote{t_.group, 9, 0, {1, 1}, {2, 2}, 5, 1, true, 3, 9});
  EXPECT_THAT(t_.Snapshot().reason, HasSubstr("ranks 0, 1, 2, 3"));
  t_.Vote("a", 3, 11);
  EXPECT_THAT(t_.Snapshot().reason, HasSubstr("ranks 0, 1, 2, 3"));
}

TEST_F(DecisionTest, ReadOnlyDecidesNothing) {
  t_.state().SetReadOnly(true);
  t_.Clear();
  VoteAll(11);
  EXPECT_TRUE(t_.records().empty());
  EXPECT_EQ(Prepared(), 0);
  t_.state().SetReadOnly(false);
  t_.Advance(absl::Seconds(1));
  EXPECT_EQ(Prepared(), 2);
}

// Half of a step is waiting, and 7 levels cost r = 0.15.
protocol::StepReport Measured(const protocol::GroupId& group, uint64_t version,
                              uint64_t count, double local, double site) {
  protocol::StepReport report;
  report.group = group;
  report.generation = 1;
  report.committed_step = count - 1;
  report.committed_count = count;
  report.decision_version = version;
  report.wait_seconds = 0.5;
  report.interval_seconds = 1;
  for (uint64_t step : {count - 2, count - 1}) {
    report.noise.push_back({step, version, local, site, 4 * local, 0, 0, 0});
  }
  return report;
}

TEST_F(DecisionTest, WhereWaitingIsLongTheKeptElementsGoTernary) {
  Compact(11);
  // Two trainers a site: V N^2 = 4 (2 - 1.6 / 2) 2 / 2 = 4.8, encoded 16.
  for (const char* agent : {"a", "b"}) {
    t_.Say(agent, Measured(t_.group, 2, 20, 2, 1.6));
  }
  const auto prepare = t_.Got<Prepare>("a");
  ASSERT_TRUE(prepare.has_value());
  EXPECT_EQ(prepare->decision.mode, Mode::kTernary);
  EXPECT_EQ(prepare->decision.codec, protocol::Codec::kLevels15);
  EXPECT_EQ(prepare->decision.mask_digest, (protocol::Digest{11, 11}));
  EXPECT_THAT(prepare->decision.reason,
              HasSubstr("waiting for the exchange is 50 % of a step; 15 levels "
                        "are expected to cost r = 0.079 of the batch, 0.3 is "
                        "allowed"));
  EXPECT_THAT(t_.Snapshot().reason,
              HasSubstr("not in force yet: all agents must switch"));
  ReportAll(3, 21);
  EXPECT_THAT(t_.Snapshot().reason, EndsWith("0.3 is allowed"));
  EXPECT_EQ(t_.Snapshot().in_force->mode, Mode::kTernary);
  EXPECT_EQ(t_.Snapshot().exchange_share, 0.5);
}

TEST_F(DecisionTest, AnEndedJobHasNoFiguresOfNow) {
  Compact(11);
  protocol::StepReport report = Measured(t_.group, 2, 20, 2, 1.6);
  for (protocol::StepReport::Noise& sample : report.noise) {
    sample.error = 0.4;
    sample.clip = 0.1;
  }
  for (const char* agent : {"a", "b"}) t_.Say(agent, report);
  EXPECT_EQ(t_.Snapshot().exchange_share, 0.5);
  EXPECT_DOUBLE_EQ(t_.Snapshot().risk.value_or(0), 0.8 / 4.8);
  EXPECT_DOUBLE_EQ(t_.Snapshot().risk_clip.value_or(0), 0.2 / 4.8);
  t_.Leave("a", 0, "killed", false);
  EXPECT_NE(t_.Snapshot().phase, GroupPhase::kRunning);
  EXPECT_FALSE(t_.Snapshot().exchange_share.has_value());
  EXPECT_FALSE(t_.Snapshot().risk.has_value());
  EXPECT_FALSE(t_.Snapshot().risk_clip.has_value());
}

TEST_F(DecisionTest, APinHoldsUntilItIsTakenBack) {
  Compact(11);
  const Pin pin = {Mode::kTernary, protocol::Codec::kLevels3};
  t_.Pin(pin);
  auto prepare = t_.Got<Prepare>("a");
  ASSERT_TRUE(prepare.has_value());
  EXPECT_EQ(prepare->decision.mode, Mode::kTernary);
  EXPECT_EQ(prepare->decision.codec, protocol::Codec::kLevels3);
  EXPECT_THAT(prepare->decision.reason,
              HasSubstr("pinned to TERNARY 3 levels by an operator"));
  EXPECT_EQ(t_.Snapshot().pin, pin);
  EXPECT_EQ(t_.journal().groups.at(t_.group).pin, pin);
  ReportAll(3, 11);
  t_.Clear();
  t_.Pin({{Mode::kFull, protocol::Codec::kBf16}});
  prepare = t_.Got<Prepare>("a");
  ASSERT_TRUE(prepare.has_value());
  EXPECT_EQ(prepare->decision.mode, Mode::kFull);
  EXPECT_EQ(prepare->decision.codec, protocol::Codec::kBf16);
  ReportAll(4, 12);
  const auto fallbacks = t_.Snapshot().account.fallbacks;
  for (size_t i = 0; i < kFallbacks.size(); ++i) {
    const Fallback pinned = {Mode::kTernary, Mode::kFull, FallbackCause::kPin};
    EXPECT_EQ(fallbacks[i], kFallbacks[i] == pinned ? 1 : 0);
  }
  t_.Clear();
  t_.Pin(std::nullopt);
  EXPECT_EQ(t_.Got<Prepare>("a")->decision.mode, Mode::kCompacted);
  EXPECT_FALSE(t_.journal().groups.at(t_.group).pin.has_value());
}

TEST_F(DecisionTest, TheReasonFollowsTheFiguresWithoutANewDecision) {
  Compact(11);
  protocol::StepReport report = Measured(t_.group, 2, 20, 2, 1.6);
  for (const double wait : {0.02, 0.04}) {
    report.wait_seconds = wait;
    for (const char* agent : {"a", "b"}) t_.Say(agent, report);
    EXPECT_THAT(t_.Snapshot().reason,
                HasSubstr("not TERNARY: waiting for the exchange is 2."));
  }
  EXPECT_EQ(Prepared(), 0);
  EXPECT_THAT(t_.Snapshot().in_force->reason,
              HasSubstr("waiting for the exchange is not measured yet"));
}

TEST_F(DecisionTest, APinThatCannotHoldSaysSo) {
  t_.Pin({{Mode::kCompacted, protocol::Codec::kFp32}});
  EXPECT_THAT(t_.Snapshot().reason,
              EndsWith("; pinned to COMPACTED fp32, not in force before the "
                       "mask votes are settled"));
  VoteAll(0);
  EXPECT_EQ(Prepared(), 0);
  EXPECT_THAT(t_.Snapshot().reason,
              HasSubstr("pinned to COMPACTED fp32, not in force: no mask set "
                        "is agreed"));
}

TEST_F(DecisionTest, APinThatAnAgentRefusesSaysSo) {
  VoteAll(0);
  t_.Pin({{Mode::kTernary, protocol::Codec::kLevels7}});
  ASSERT_EQ(Prepared(), 2);
  EXPECT_THAT(t_.Snapshot().reason,
              HasSubstr("not in force yet: all agents must switch"));
  t_.Answer("b", 2, false);
  EXPECT_THAT(t_.Snapshot().reason,
              EndsWith("pinned to TERNARY 7 levels by an operator; not in "
                       "force yet: agent 'b' (site 'y') refused it: no "
                       "buffers"));
}

TEST_F(DecisionTest, APinThatMakesNoSenseIsRefused) {
  EXPECT_THAT(
      t_.state().SetPin(t_.group, Pin{Mode::kTernary, protocol::Codec::kFp32},
                        t_.now()),
      base::StatusIs(absl::StatusCode::kInvalidArgument,
                     HasSubstr("TERNARY goes with 3, 5, 7")));
  EXPECT_THAT(t_.state().SetPin({"other", 0}, std::nullopt, t_.now()),
              base::StatusIs(absl::StatusCode::kNotFound, HasSubstr("other")));
}

TEST_F(DecisionTest, WhatEachParameterKeepsIsOfTheMasksThatAllWant) {
  const auto tell = [&](uint64_t mask) {
    protocol::StepReport report;
    report.group = t_.group;
    report.generation = 1;
    report.keep_by_parameter = {
        {mask, mask}, {{"fc.weight", 30, 100}}, 0, 0, 0};
    t_.Say("a", report);
  };
  EXPECT_EQ(t_.Snapshot().keep_by_parameter, nullptr);
  tell(11);
  VoteAll(11);
  ASSERT_NE(t_.Snapshot().keep_by_parameter, nullptr);
  EXPECT_EQ(t_.Snapshot().keep_by_parameter->parameters[0].name, "fc.weight");
  VoteAll(12);  // Of these nobody has told it yet.
  EXPECT_EQ(t_.Snapshot().keep_by_parameter, nullptr);
  tell(12);
  EXPECT_NE(t_.Snapshot().keep_by_parameter, nullptr);
}

TEST_F(DecisionTest, FailedAttemptsAreCountedByCauseOverGenerations) {
  constexpr auto kStall = static_cast<size_t>(protocol::Cause::kStall);
  const auto fail = [&](const std::string& agent, uint64_t all,
                        uint64_t stalls) {
    protocol::StepReport report;
    report.group = t_.group;
    report.generation = t_.Snapshot().generation->number;
    report.failed_attempts = all;
    report.failed_by_cause[kStall] = stalls;
    t_.Say(agent, report);
  };
  fail("a", 3, 3);
  fail("b", 4, 0);  // An older one, which tells no causes.
  EXPECT_EQ(t_.Snapshot().failed_by_cause_total[kStall], 3);
  EXPECT_EQ(t_.Snapshot().failed_by_cause_total[0], 1);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    t_.Leave(rank < 2 ? "a" : "b", rank, "detached");
  }
  for (uint32_t rank = 0; rank < 4; ++rank) {
    t_.Join(rank < 2 ? "a" : "b", rank, 4, "run-2");
  }
  fail("a", 2, 2);
  EXPECT_EQ(t_.Snapshot().failed_by_cause_total[kStall], 5);
  EXPECT_EQ(t_.Snapshot().failed_attempts_total, 6);
  // One that is started again counts from what it hears first.
  t_.RestartCoordinator();
  for (const char* agent : {"a", "b"}) {
    t_.Connect(agent, *agent == 'a' ? "x" : "y", /*same_process=*/true);
  }
  fail("a", 2, 2);
  EXPECT_EQ(t_.Snapshot().failed_by_cause_total[kStall], 0);
  fail("a", 3, 3);
  EXPECT_EQ(t_.Snapshot().failed_by_cause_total[kStall], 1);
}

TEST_F(DecisionTest, WhatIsCountedSaysSinceWhenAlsoAfterARestart) {
  const absl::Time before = t_.Snapshot().counted_since;
  t_.Advance(absl::Seconds(60));
  EXPECT_EQ(t_.Snapshot().counted_since, before);
  t_.RestartCoordinator();
  EXPECT_EQ(t_.Snapshot().counted_since, before + absl::Seconds(60));
}

}  // namespace
}  // namespace pactrain::coordinator
