#include "coordinator/core/policy.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::Codec;
using protocol::Decision;
using protocol::Mode;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

MaskVotes OneVote(uint64_t kept) {
  MaskVotes votes(1);
  EXPECT_OK(
      votes.Add({{"j", 0}, 1, 0, {1, 1}, {2, 2}, 5, 1, true, kept, 9}, 0));
  return votes;
}

MaskVotes NoMasks() {
  MaskVotes votes(1);
  EXPECT_OK(votes.Add({{"j", 0}, 1, 0, {1, 1}, {}, 5, 1, true, 9, 9}, 0));
  return votes;
}

// Two sites; the encoded values weigh `encoded` times N^2 V.
Telemetry MakeTelemetry(double share, double encoded) {
  Telemetry telemetry;
  telemetry.sites = 2;
  telemetry.exchange_share = share;
  telemetry.measured_steps = 4;
  telemetry.noise = Noise::Estimate{4, 1, encoded, 0};
  telemetry.noise_factor = 1;
  return telemetry;
}

// With stable masks, from COMPACTED.
Decision Chosen(const Telemetry& telemetry, const Options& options = {}) {
  Decision current;
  current.mode = Mode::kCompacted;
  return *Choose(options, current, OneVote(3), 9, telemetry, {});
}

TEST(Policy, MasksThatKeepEverythingAreFull) {
  const auto wanted = Choose({}, FullDecision({}, ""), OneVote(9), 0, {}, {});
  ASSERT_TRUE(wanted.has_value());
  EXPECT_EQ(wanted->mode, Mode::kFull);
}

TEST(Policy, TheCodecIsTheOptions) {
  Options options;
  options.codec = Codec::kBf16;
  EXPECT_EQ(
      Choose(options, FullDecision(options, ""), OneVote(3), 0, {}, {})->codec,
      Codec::kBf16);
}

TEST(Policy, TheCoarsestCodecWithinTheBoundIsTaken) {
  EXPECT_EQ(Chosen(MakeTelemetry(0.5, 1)).codec, Codec::kLevels5);
  EXPECT_EQ(Chosen(MakeTelemetry(0.5, 3)).codec, Codec::kLevels7);
  EXPECT_EQ(Chosen(MakeTelemetry(0.5, 10)).codec, Codec::kLevels15);
  EXPECT_EQ(Chosen(MakeTelemetry(0.5, 50)).codec, Codec::kLevels31);
  EXPECT_EQ(Chosen(MakeTelemetry(0.5, 100)).mode, Mode::kCompacted);
  Options safe;
  safe.risk_bound = 0.1;
  EXPECT_EQ(Chosen(MakeTelemetry(0.5, 1), safe).codec, Codec::kLevels7);
}

TEST(Policy, BeforeItIsMeasuredNoiseIsTakenForMoreThanThatOfGaussianValues) {
  Telemetry telemetry = MakeTelemetry(0.5, 1);  // r = 0.18 with 5 levels.
  EXPECT_EQ(Chosen(telemetry).codec, Codec::kLevels5);
  telemetry.noise_factor = Telemetry().noise_factor;
  const Decision first = Chosen(telemetry);
  EXPECT_EQ(first.codec, Codec::kLevels7);
  EXPECT_THAT(first.reason, EndsWith("7 levels are expected to cost r = 0.117 "
                                     "of the batch, 0.3 is allowed"));
}

TEST(Policy, WithoutAnyAllowedRiskItIsNeverTernary) {
  Options exact;
  exact.risk_bound = 0;
  EXPECT_EQ(Chosen(MakeTelemetry(0.9, 1e-6), exact).mode, Mode::kCompacted);
}

TEST(Policy, ThreeLevelsAreNeverChosenByItself) {
  EXPECT_EQ(Chosen(MakeTelemetry(0.9, 1e-6)).codec, Codec::kLevels5);
}

TEST(Policy, WithoutMuchWaitingOrAKnownRiskItStaysExact) {
  EXPECT_EQ(Chosen(MakeTelemetry(0.05, 1)).mode, Mode::kCompacted);
  Telemetry unknown = MakeTelemetry(0.5, 1);
  unknown.noise.reset();
  EXPECT_EQ(Chosen(unknown).mode, Mode::kCompacted);
  Telemetry one_site = MakeTelemetry(0.5, 1);
  one_site.sites = 1;
  EXPECT_EQ(Chosen(one_site).mode, Mode::kCompacted);
}

TEST(Policy, TheReasonSaysWhyItIsNotTernary) {
  const auto why = [](const Telemetry& telemetry, const Options& options = {}) {
    return Chosen(telemetry, options).reason;
  };
  const Telemetry good = MakeTelemetry(0.5, 1);
  Options exact;
  exact.risk_bound = 0;
  EXPECT_THAT(why(good, exact),
              EndsWith("not TERNARY: --risk exact forbids it"));
  Telemetry t = good;
  t.sites = 1;
  EXPECT_THAT(why(t),
              EndsWith("not TERNARY: one site alone quantises nothing"));
  EXPECT_THAT(why(MakeTelemetry(0.0999, 1)),
              EndsWith("not TERNARY: waiting for the exchange is 9.9 % of a "
                       "step, less than 10 %"));
  t = good;
  t.exchange_share.reset();
  EXPECT_THAT(why(t), EndsWith("not TERNARY: waiting for the exchange is not "
                               "measured yet"));
  t = good;
  t.measured_steps = 1;
  EXPECT_THAT(why(t), EndsWith("not TERNARY: r is not known yet, 1 of 2 steps "
                               "are measured"));
  t = good;
  t.noise.reset();
  EXPECT_THAT(why(t), EndsWith("not TERNARY: r is not known, the trainers' "
                               "gradients hardly differ"));
  EXPECT_THAT(why(MakeTelemetry(0.5, 99)),
              EndsWith("elements; not TERNARY: even 31 levels would cost r = "
                       "0.347, more than 0.24 (0.8 of 0.3)"));
  EXPECT_THAT(
      Choose({}, FullDecision({}, ""), NoMasks(), 9, MakeTelemetry(0.05, 1), {})
          ->reason,
      StartsWith("no masks voted: all elements are sent; not TERNARY: "
                 "waiting for the exchange is 5.0 %"));
}

TEST(Policy, WithoutMasksAllElementsGoTernary) {
  const auto wanted =
      Choose({}, FullDecision({}, ""), NoMasks(), 9, MakeTelemetry(0.5, 1), {});
  EXPECT_EQ(wanted->mode, Mode::kTernary);
  EXPECT_TRUE(wanted->mask_digest.empty());
  EXPECT_TRUE(wanted->layout_digest.empty());
  EXPECT_OK(protocol::CheckDecision(*wanted));
}

// From TERNARY 7 levels with the measured risk `risk`.
Decision Next(double risk, Telemetry telemetry) {
  Decision current = Chosen(MakeTelemetry(0.5, 3));
  EXPECT_EQ(current.codec, Codec::kLevels7);
  telemetry.current = Noise::Estimate{4, 1, 3, risk};
  telemetry.noise_factor = risk / (3 * ExpectedNoise(Codec::kLevels7));
  return *Choose({}, current, OneVote(3), 99, telemetry, {});
}

TEST(Policy, TooMuchMeasuredRiskMeansAFinerCodecOrAnExactOne) {
  EXPECT_EQ(Next(0.2, MakeTelemetry(0.01, 3)).codec, Codec::kLevels7);
  EXPECT_EQ(Next(0.4, MakeTelemetry(0.01, 3)).codec, Codec::kLevels15);
  EXPECT_EQ(Next(4, MakeTelemetry(0.01, 3)).codec, Codec::kLevels31);
  EXPECT_EQ(Next(40, MakeTelemetry(0.01, 3)).mode, Mode::kCompacted);
}

TEST(Policy, TheReasonSaysWhyTernaryIsTakenBack) {
  const std::string finer = Next(0.4, MakeTelemetry(0.01, 3)).reason;
  EXPECT_THAT(
      finer,
      HasSubstr(
          "7 levels cost r = 0.400 of the batch as "
          "measured, more than 0.3; 15 levels are expected to cost r = 0.081"));
  const std::string exact = Next(40, MakeTelemetry(0.01, 3)).reason;
  EXPECT_THAT(exact,
              HasSubstr("not TERNARY: 7 levels cost r = 40.000 of the batch "
                        "as measured, more than 0.3; even 31 levels would "
                        "cost r = 1.793, more than 0.24"));
  // What is longer is cut on the wire.
  EXPECT_LT(exact.size(), 250);
}

TEST(Policy, ACoarserCodecNeedsRoomToSpare) {
  EXPECT_EQ(Next(0.1, MakeTelemetry(0.01, 3)).codec, Codec::kLevels7);
  EXPECT_EQ(Next(0.05, MakeTelemetry(0.01, 3)).codec, Codec::kLevels5);
}

TEST(Policy, WhatStaysSaysItsMeasuredRisk) {
  EXPECT_THAT(Next(0.2, MakeTelemetry(0.01, 3)).reason,
              EndsWith("; 7 levels cost r = 0.200 of the batch as measured, "
                       "0.3 is allowed"));
}

TEST(Policy, ThreeLevelsEndWithTheirPin) {
  Decision current = Chosen(MakeTelemetry(0.5, 3));
  current.codec = Codec::kLevels3;
  Telemetry telemetry = MakeTelemetry(0.5, 0.1);
  const auto next = [&] {
    return Choose({}, current, OneVote(3), 99, telemetry, {})->codec;
  };
  EXPECT_EQ(next(), Codec::kLevels5);
  telemetry.current = Noise::Estimate{4, 1, 0.1, 0.05};
  EXPECT_EQ(next(), Codec::kLevels5);
  telemetry.measured_steps = 1;
  EXPECT_EQ(next(), Codec::kLevels5);
}

TEST(Policy, AFreshSwitchIsNotJudgedBeforeItIsMeasured) {
  Decision current = Chosen(MakeTelemetry(0.5, 3));
  const auto wanted =
      Choose({}, current, OneVote(3), 99, MakeTelemetry(0.5, 30), {});
  EXPECT_EQ(wanted->codec, Codec::kLevels7);
  Telemetry unknown = MakeTelemetry(0.5, 3);
  unknown.measured_steps = 1;
  const auto kept = Choose({}, current, OneVote(3), 99, unknown, {});
  EXPECT_EQ(kept->codec, Codec::kLevels7);
  EXPECT_THAT(kept->reason, EndsWith("; 7 levels stay until r is measured"));
}

TEST(Policy, WhereNothingVariesAnyMoreAllIsExactAgain) {
  const Decision current = Chosen(MakeTelemetry(0.5, 3));
  ASSERT_EQ(current.mode, Mode::kTernary);
  Telemetry unknown = MakeTelemetry(0.5, 3);
  unknown.noise.reset();
  const auto next = Choose({}, current, OneVote(3), 99, unknown, {});
  EXPECT_EQ(next->mode, Mode::kCompacted);
  EXPECT_THAT(next->reason, EndsWith("gradients hardly differ"));
}

// Under `pin`, from FULL.
Decision ChosenUnder(const Pin& pin, const MaskVotes& votes, int sites = 2) {
  Telemetry telemetry = MakeTelemetry(0.5, 1);
  telemetry.sites = sites;
  return *Choose({}, FullDecision({}, ""), votes, 9, telemetry,
                 {.by_operator = pin});
}

TEST(Pin, CompactedWithoutMasksIsNotInForceAndSaysSo) {
  const Pin pin = {Mode::kCompacted, Codec::kFp32};
  const Decision none = ChosenUnder(pin, NoMasks());
  EXPECT_EQ(none.mode, Mode::kFull);
  EXPECT_FALSE(pin.IsMetBy(none));
  EXPECT_EQ(none.reason,
            "no masks voted: all elements are sent; pinned to COMPACTED fp32, "
            "not in force: no mask set is agreed that leaves elements out");
  EXPECT_THAT(ChosenUnder(pin, OneVote(9)).reason,
              StartsWith("the masks keep every element; pinned to COMPACTED "
                         "fp32, not in force"));
  const Decision masked = ChosenUnder(pin, OneVote(3));
  EXPECT_TRUE(pin.IsMetBy(masked));
  EXPECT_THAT(masked.reason,
              EndsWith("pinned to COMPACTED fp32 by an operator"));
}

TEST(Pin, TernaryOfOneSiteSaysThatItChangesNothing) {
  const Pin pin = {Mode::kTernary, Codec::kLevels7};
  EXPECT_THAT(ChosenUnder(pin, NoMasks(), 1).reason,
              EndsWith("pinned to TERNARY 7 levels by an operator; one site "
                       "alone quantises nothing"));
  EXPECT_THAT(ChosenUnder(pin, NoMasks(), 2).reason,
              EndsWith("by an operator"));
}

TEST(Pin, GoesWithItsCodecsOnly) {
  EXPECT_OK(CheckPin({Mode::kTernary, Codec::kLevels3}));
  EXPECT_OK(CheckPin({Mode::kFull, Codec::kBf16}));
  EXPECT_THAT(CheckPin({Mode::kFull, Codec::kLevels7}),
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("FULL 7 levels")));
}

}  // namespace
}  // namespace pactrain::coordinator
