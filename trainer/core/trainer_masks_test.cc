// Which elements of a bucket are sent and in which mode, and what makes a step
// dense.
#include "gmock/gmock.h"
#include "trainer/core/test_trainer.h"

namespace pactrain::trainer {
namespace {

using ::testing::HasSubstr;
using wire::Code;
using TrainerMasksTest = TestTrainer;

TEST_F(TrainerMasksTest, KnownLayoutIsCompacted) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  const wire::Submit submit = Submit(MakeBucket(0, 100, false));
  EXPECT_EQ(submit.mode, 2);
  EXPECT_EQ(submit.elements, 25u);
  EXPECT_TRUE(Same(submit.mask_digest, kMask));
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).offset, 128u);
  Say(Committed(kBaseStep));
  state_.TakeStep(&report_);
  EXPECT_EQ(mode(), Mode::kCompacted);
  EXPECT_EQ(report_.submitted_elements, 50u);
}

wire::Decision TernaryDecision() {
  wire::Decision decision = CompactedDecision();
  decision.mode = 3;
  decision.codec = static_cast<uint8_t>(Codec::kLevels7);
  return decision;
}

TEST_F(TrainerMasksTest, TernaryIsOfTheKeptElements) {
  Attach(TernaryDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  const wire::Submit submit = Submit(MakeBucket(0, 100, true));
  EXPECT_EQ(submit.mode, 3);
  EXPECT_EQ(submit.elements, 25u);
  EXPECT_TRUE(Same(submit.mask_digest, kMask));
  Say(Committed(kBaseStep));
  state_.TakeStep(&report_);
  EXPECT_EQ(mode(), Mode::kTernary);
  EXPECT_EQ(codec(), Codec::kLevels7);
}

TEST_F(TrainerMasksTest, TernaryWithoutAMaskSetIsOfAllElements) {
  wire::Decision decision = TernaryDecision();
  decision.mask_digest = decision.layout_digest = {};
  Attach(decision);
  const wire::Submit submit = Submit(MakeBucket(0, 100, true));
  EXPECT_EQ(submit.mode, 3);
  EXPECT_EQ(submit.elements, 100u);
  EXPECT_TRUE(Same(submit.mask_digest, {}));
}

TEST_F(TrainerMasksTest, ABucketThatTernaryDoesNotHoldForIsSentExactly) {
  Attach(TernaryDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  state_.RequireDense("asked");
  Bucket rebuilt = MakeBucket(0, 100, false);
  rebuilt.layout = {55, 55};
  const wire::Submit full = Submit(rebuilt);
  EXPECT_EQ(full.mode, 1);
  EXPECT_EQ(full.violation, 0);
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).violation, 1);
  Say(Committed(kBaseStep));
  state_.TakeStep(&report_);
  EXPECT_EQ(mode(), Mode::kFull);
  EXPECT_EQ(codec(), Codec::kFp32);
}

TEST_F(TrainerMasksTest, UnknownBucketLayoutIsSentFull) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  Bucket rebuilt = MakeBucket(0, 100, false);
  rebuilt.layout = {55, 55};
  EXPECT_EQ(Submit(rebuilt).mode, 1);
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).mode, 2);
  Say(Committed(kBaseStep));
  state_.TakeStep(&report_);
  EXPECT_EQ(mode(), Mode::kFull);
}

TEST_F(TrainerMasksTest, WithoutTheDecisionsMasksBucketsAreSentFull) {
  Attach(CompactedDecision());
  EXPECT_EQ(Submit(MakeBucket(0, 100, true)).mode, 1);
}

TEST_F(TrainerMasksTest, ExclusiveOrIsNeverCompacted) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  state_.RequireDense("asked");
  Bucket bucket = MakeBucket(0, 100, true);
  bucket.op = Op::kXor;
  const wire::Submit submit = Submit(bucket);
  EXPECT_EQ(submit.mode, 1);
  EXPECT_EQ(submit.violation, 0);
}

TEST_F(TrainerMasksTest, NewestFourMaskSetsAreHeld) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  for (uint64_t i = 0; i < 3; ++i) {
    MaskSet other = Masks();
    other.mask_digest = {9, i};
    ASSERT_TRUE(state_.SetMasks(other).ok());
  }
  EXPECT_EQ(Submit(MakeBucket(0, 100, true)).mode, 2);
  Say(Committed(kBaseStep));
  state_.TakeStep(&report_);
  MaskSet fifth = Masks();
  fifth.mask_digest = {9, 4};
  ASSERT_TRUE(state_.SetMasks(fifth).ok());
  wire::Committed committed = Committed(kBaseStep + 1);
  committed.next = CompactedDecision();
  Submit(MakeBucket(0, 100, true));
  Say(committed);
  state_.TakeStep(&report_);
  EXPECT_EQ(Submit(MakeBucket(0, 100, true)).mode, 1);
}

TEST_F(TrainerMasksTest, ABucketsMaskMayComeJustBeforeIt) {
  Attach(CompactedDecision());
  MaskSet first = Masks(), second = Masks();
  first.buckets.pop_back();
  second.buckets.erase(second.buckets.begin());
  second.first_bucket = 1;
  ASSERT_TRUE(state_.SetMasks(first).ok());
  EXPECT_EQ(Submit(MakeBucket(0, 100, false)).mode, 2);
  ASSERT_TRUE(state_.SetMasks(second).ok());
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).mode, 2);
}

TEST_F(TrainerMasksTest, ABucketOfAnotherLayoutGetsItsMaskAnew) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  MaskSet rebuilt = Masks();
  rebuilt.buckets[0].layout = {55, 55};
  ASSERT_TRUE(state_.SetMasks(rebuilt).ok());
  Bucket bucket = MakeBucket(0, 100, false);
  EXPECT_EQ(Submit(bucket).mode, 1);
  bucket = MakeBucket(1, 100, true);
  EXPECT_EQ(Submit(bucket).mode, 2);
}

TEST_F(TrainerMasksTest, MasksOfTooManyBucketsAreRefused) {
  Attach();
  MaskSet masks = Masks();
  masks.first_bucket = kMaxBuckets - 1;
  EXPECT_EQ(state_.SetMasks(masks).code, Code::kInvalidArgument);
}

TEST_F(TrainerMasksTest, ElementsOutsideTheMaskMakeAViolation) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  const wire::Submit submit = Submit(MakeBucket(0, 100, true), 7);
  EXPECT_EQ(submit.violation, 1);
  EXPECT_THAT(submit.violation_text, HasSubstr("7 elements of bucket 0"));
}

TEST_F(TrainerMasksTest, GseDoesNotCountOutsideTheMask) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  Placement placement;
  ASSERT_TRUE(state_.Place(now_, MakeBucket(0, 100, true), &placement).ok());
  EXPECT_FALSE(placement.count_outside);
}

class NoGseTest : public TrainerMasksTest {
 protected:
  NoGseTest()
      : TrainerMasksTest([] {
          TrainerOptions options = Options();
          options.gse = false;
          return options;
        }()) {}
};

TEST_F(NoGseTest, ElementsOutsideTheMaskAreCounted) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  Placement placement;
  ASSERT_TRUE(state_.Place(now_, MakeBucket(0, 100, true), &placement).ok());
  EXPECT_TRUE(placement.count_outside);
}

TEST_F(TrainerMasksTest, RequiredDenseIsAViolationWithItsReason) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  state_.RequireDense("weights were loaded");
  const wire::Submit submit = Submit(MakeBucket(0, 100, false));
  EXPECT_EQ(submit.violation, 1);
  EXPECT_STREQ(submit.violation_text, "weights were loaded");
  state_.RequireDense("");
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).violation, 0);
}

TEST_F(TrainerMasksTest, RequiredDenseIsMetByFullInFp32) {
  Attach();
  state_.RequireDense("weights were loaded");
  EXPECT_EQ(Submit(MakeBucket(0, 100, true)).violation, 0);
}

TEST_F(TrainerMasksTest, VoteOutsideTheDecisionIsAViolationUntilItIsInForce) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  wire::Vote vote = {};
  vote.mask_digest = {8, 8};
  ASSERT_TRUE(state_.Vote("conv.weight 12", &vote).ok());
  EXPECT_EQ(vote.header.kind, wire::Kind::kVote);
  EXPECT_STREQ(vote.moved, "conv.weight 12");
  EXPECT_EQ(Submit(MakeBucket(0, 100, false)).violation, 1);
  vote.mask_digest = kMask;
  ASSERT_TRUE(state_.Vote("", &vote).ok());
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).violation, 0);
}

}  // namespace
}  // namespace pactrain::trainer
