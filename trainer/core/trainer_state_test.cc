// A trainer's steps: buckets, ends, and what breaks the protocol.
#include <chrono>

#include "gmock/gmock.h"
#include "trainer/core/test_trainer.h"

namespace pactrain::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using wire::Code;
using TrainerStateTest = TestTrainer;

TEST_F(TrainerStateTest, BucketsLieInOrderAtAlignedOffsets) {
  Attach();
  const wire::Submit first = Submit(MakeBucket(0, 3, false));
  const wire::Submit second = Submit(MakeBucket(1, 100, true));
  EXPECT_EQ(first.step, kBaseStep);
  EXPECT_EQ(first.attempt, 1u);
  EXPECT_EQ(first.offset, 0u);
  EXPECT_EQ(first.last, 0);
  EXPECT_EQ(second.offset, 64u);
  EXPECT_EQ(second.last, 1);
  EXPECT_EQ(second.mode, 1);
  EXPECT_EQ(second.violation, 0);
}

TEST_F(TrainerStateTest, CommittedStepIsReportedAndTheNextOneOpens) {
  Attach();
  SubmitTwo();
  now_ += milliseconds(250);
  wire::Committed committed = Committed(kBaseStep);
  committed.sent_bytes = 5;
  committed.next = CompactedDecision();
  EXPECT_EQ(Say(committed), Event::kStepDone);
  EXPECT_TRUE(state_.TakeStep(&report_).ok());
  EXPECT_EQ(report_.step, kBaseStep);
  EXPECT_EQ(report_.attempts, 1u);
  EXPECT_EQ(mode(), Mode::kFull);
  EXPECT_EQ(report_.elements, 200u);
  EXPECT_EQ(report_.submitted_elements, 200u);
  EXPECT_EQ(report_.sent_bytes, 5u);
  EXPECT_EQ(report_.wait_seconds, 0.25);
  EXPECT_EQ(state_.decision().version, 2u);
  EXPECT_EQ(state_.next_step(), kBaseStep + 1);
  EXPECT_EQ(state_.placements().size(), 2u);
  EXPECT_TRUE(state_.results().committed);
  EXPECT_EQ(Submit(MakeBucket(0, 100, true)).step, kBaseStep + 1);
  EXPECT_FALSE(state_.results().committed);
}

TEST_F(TrainerStateTest, ResubmitSendsAllBucketsDenseWithTheNewAttempt) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  SubmitTwo();
  EXPECT_EQ(Say(Resubmit(kBaseStep, 2)), Event::kResubmit);
  std::vector<Placement> again = state_.TakeResubmits();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[1].mask, nullptr);
  EXPECT_EQ(again[1].offset, 448u);  // 100 floats, aligned to 64 bytes.
  const wire::Submit submit =
      state_.Submit(now_, again[1], again[1].elements, 0);
  EXPECT_EQ(submit.attempt, 2u);
  EXPECT_EQ(submit.mode, 1);
  EXPECT_EQ(submit.dense, 1);
  EXPECT_EQ(submit.last, 1);
  EXPECT_EQ(Say(Committed(kBaseStep, 2)), Event::kStepDone);
  EXPECT_TRUE(state_.TakeStep(&report_).ok());
  EXPECT_EQ(report_.dense, 1);
  EXPECT_EQ(report_.attempts, 2u);
  EXPECT_EQ(report_.submitted_elements, 200u);
}

TEST_F(TrainerStateTest, BucketsAfterAResubmitAreDenseToo) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  Submit(MakeBucket(0, 100, false));
  Say(Resubmit(kBaseStep, 2));
  for (const Placement& p : state_.TakeResubmits()) {
    state_.Submit(now_, p, p.elements, 0);
  }
  const wire::Submit later = Submit(MakeBucket(1, 100, true));
  EXPECT_EQ(later.dense, 1);
  EXPECT_EQ(later.attempt, 2u);
  EXPECT_EQ(later.offset, 448u);
}

TEST_F(TrainerStateTest, RepeatedResubmitIsIgnored) {
  Attach();
  SubmitTwo();
  EXPECT_EQ(Say(Resubmit(kBaseStep, 2)), Event::kResubmit);
  EXPECT_EQ(Say(Resubmit(kBaseStep, 2)), Event::kNone);
}

TEST_F(TrainerStateTest,
       ResubmitBeforeTheStepIsOpenedMakesItDenseFromTheStart) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  EXPECT_EQ(Say(Resubmit(kBaseStep, 2)), Event::kNone);
  const wire::Submit submit = Submit(MakeBucket(0, 100, true));
  EXPECT_EQ(submit.attempt, 2u);
  EXPECT_EQ(submit.dense, 1);
  EXPECT_EQ(submit.mode, 1);
}

TEST_F(TrainerStateTest, CommitOfALaterAttemptOfTheSameBytesIsFine) {
  Attach();
  SubmitTwo();
  EXPECT_EQ(Say(Committed(kBaseStep, 3)), Event::kStepDone);
  state_.TakeStep(&report_);
  EXPECT_EQ(report_.attempts, 3u);
  EXPECT_EQ(report_.dense, 0);
}

TEST_F(TrainerStateTest, StepNotAppliedMovesOnAndTheSessionLives) {
  Attach();
  SubmitTwo();
  EXPECT_EQ(Say(Failed(kBaseStep, Code::kStepNotApplied, false)),
            Event::kStepDone);
  const Error error = state_.TakeStep(&report_);
  EXPECT_EQ(error.code, Code::kStepNotApplied);
  EXPECT_FALSE(error.final);
  EXPECT_THAT(error.text, HasSubstr("site b has y"));
  EXPECT_FALSE(state_.over());
  EXPECT_FALSE(state_.results().committed);
  EXPECT_EQ(Submit(MakeBucket(0, 100, true)).step, kBaseStep + 1);
}

TEST_F(TrainerStateTest, RestOfAFailedStepGetsTheSameError) {
  Attach();
  Submit(MakeBucket(0, 100, false));
  Say(Failed(kBaseStep, Code::kStepNotApplied, false));
  EXPECT_EQ(TryPlace(MakeBucket(1, 100, false)).code, Code::kStepNotApplied);
  state_.TakeStep(&report_);
  EXPECT_EQ(TryPlace(MakeBucket(2, 100, true)).code, Code::kStepNotApplied);
  EXPECT_TRUE(TryPlace(MakeBucket(0, 100, false)).ok());
}

TEST_F(TrainerStateTest, FailureBeforeTheStepIsOpenedFailsItAtOnce) {
  Attach();
  EXPECT_EQ(Say(Failed(kBaseStep, Code::kStepNotApplied, false)), Event::kNone);
  EXPECT_EQ(TryPlace(MakeBucket(0, 100, false)).code, Code::kStepNotApplied);
  EXPECT_TRUE(state_.step_done());
  EXPECT_EQ(state_.TakeStep(&report_).code, Code::kStepNotApplied);
  EXPECT_EQ(state_.next_step(), kBaseStep + 1);
}

TEST_F(TrainerStateTest, FinalFailureEndsStepAndSession) {
  Attach();
  SubmitTwo();
  EXPECT_EQ(Say(Failed(kBaseStep, Code::kResyncRequired, true)), Event::kOver);
  EXPECT_EQ(state_.TakeStep(&report_).code, Code::kResyncRequired);
  EXPECT_TRUE(state_.over());
  EXPECT_EQ(TryPlace(MakeBucket(0, 100, true)).code, Code::kResyncRequired);
}

TEST_F(TrainerStateTest, ClosedSocketIsAnUnresponsiveAgent) {
  Attach();
  SubmitTwo();
  EXPECT_EQ(state_.OnClosed(now_), Event::kOver);
  const Error error = state_.TakeStep(&report_);
  EXPECT_EQ(error.code, Code::kAgentUnresponsive);
  EXPECT_THAT(error.text, HasSubstr("unix:/run/agent.sock"));
}

TEST_F(TrainerStateTest, FinalErrorStaysTheFirstOne) {
  Attach();
  Say(Failed(~0ull, Code::kResyncRequired, true));
  EXPECT_EQ(state_.OnClosed(now_), Event::kNone);
  EXPECT_EQ(state_.error().code, Code::kResyncRequired);
}

TEST_F(TrainerStateTest, WatchdogEndsAStepTwoSecondsAfterTheDeadline) {
  Attach();
  SubmitTwo();
  EXPECT_EQ(state_.deadline(), now_ + seconds(62));
  now_ += seconds(62) - milliseconds(1);
  EXPECT_EQ(state_.OnTick(now_), Event::kNone);
  now_ += milliseconds(1);
  EXPECT_EQ(state_.OnTick(now_), Event::kOver);
  const Error error = state_.TakeStep(&report_);
  EXPECT_EQ(error.code, Code::kAgentUnresponsive);
  EXPECT_FALSE(error.may_rejoin);
  EXPECT_THAT(error.text, HasSubstr("last checkpoint"));
}

TEST_F(TrainerStateTest, AnyWordFromTheAgentFeedsTheWatchdog) {
  Attach();
  SubmitTwo();
  now_ += seconds(61);
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  EXPECT_EQ(Say(waiting), Event::kNone);
  EXPECT_EQ(state_.deadline(), now_ + seconds(62));
}

TEST_F(TrainerStateTest, WatchdogSleepsWhileTheTrainerItselfIsNotDone) {
  Attach();
  Submit(MakeBucket(0, 100, false));
  EXPECT_FALSE(state_.deadline().has_value());
  now_ += seconds(1000);
  EXPECT_EQ(state_.OnTick(now_), Event::kNone);
}

TEST_F(TrainerStateTest, OldMessagesAreIgnored) {
  Attach();
  SubmitTwo();
  Say(Committed(kBaseStep));
  EXPECT_EQ(Say(Committed(kBaseStep)), Event::kNone);
  EXPECT_EQ(Say(Resubmit(kBaseStep, 2)), Event::kNone);
  EXPECT_EQ(Say(Failed(kBaseStep, Code::kStepNotApplied, false)), Event::kNone);
  EXPECT_TRUE(state_.TakeStep(&report_).ok());
}

TEST_F(TrainerStateTest, CommitOfWhatWasNotSubmittedBreaksTheProtocol) {
  Attach();
  Submit(MakeBucket(0, 100, false));
  EXPECT_EQ(Say(Committed(kBaseStep)), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kInternal);
}

TEST_F(TrainerStateTest, StepsFromTheFutureBreakTheProtocol) {
  Attach();
  SubmitTwo();
  EXPECT_EQ(Say(Resubmit(kBaseStep + 1, 2)), Event::kOver);
  EXPECT_EQ(state_.TakeStep(&report_).code, Code::kInternal);
}

TEST_F(TrainerStateTest, WrongBucketsAreRefusedInWords) {
  Attach();
  EXPECT_EQ(TryPlace(MakeBucket(1, 100, false)).code, Code::kInvalidArgument);
  Bucket bucket = MakeBucket(0, 100, false);
  bucket.dtype = static_cast<Dtype>(7);
  EXPECT_THAT(TryPlace(bucket).text, HasSubstr("dtype is 7"));
  bucket = MakeBucket(0, 100, false);
  bucket.op = static_cast<Op>(0);
  EXPECT_THAT(TryPlace(bucket).text, HasSubstr("op is 0"));
  bucket = MakeBucket(0, 100, false);
  bucket.op = Op::kXor;
  bucket.dtype = Dtype::kBfloat16;
  EXPECT_EQ(TryPlace(bucket).code, Code::kInvalidArgument);
  EXPECT_THAT(TryPlace(MakeBucket(0, 1 << 20, false)).text,
              HasSubstr("does not fit"));
  EXPECT_FALSE(state_.over());
}

TEST_F(TrainerStateTest, RefusedBucketEndsAStepThatCanNoLongerBeComplete) {
  Attach();
  Submit(MakeBucket(0, 100, false));
  EXPECT_EQ(TryPlace(MakeBucket(5, 100, false)).code, Code::kInvalidArgument);
  EXPECT_TRUE(state_.step_done());
  EXPECT_EQ(state_.TakeStep(&report_).code, Code::kInvalidArgument);
  EXPECT_TRUE(state_.over());
}

TEST_F(TrainerStateTest, BucketAfterTheLastOneIsRefusedAndTheStepGoesOn) {
  Attach();
  SubmitTwo();
  EXPECT_EQ(TryPlace(MakeBucket(2, 1, true)).code, Code::kInvalidArgument);
  EXPECT_EQ(Say(Committed(kBaseStep)), Event::kStepDone);
}

TEST_F(TrainerStateTest, ParametersDigestTravelsWithTheLastBucket) {
  Attach();
  Bucket bucket = MakeBucket(0, 100, true);
  bucket.parameters = {5, 6};
  EXPECT_TRUE(Same(Submit(bucket).parameters, {5, 6}));
}

TEST_F(TrainerStateTest, WrittenOfABucketThatIsBeingFilledIsHeardLater) {
  Attach();
  Placement placement;
  ASSERT_TRUE(state_.Place(now_, MakeBucket(0, 100, true), &placement).ok());
  state_.Submit(now_, placement, 40, 0);
  wire::Written written = {};
  written.header = {wire::Kind::kWritten, sizeof(written)};
  written.step = kBaseStep;
  written.attempt = 1;
  written.elements = 30;
  EXPECT_EQ(Say(written), Event::kWritten);
  EXPECT_EQ(state_.results().elements, 0u);
  state_.Submit(now_, placement, 100, 0);
  EXPECT_EQ(Say(written), Event::kWritten);
  EXPECT_EQ(state_.results().elements, 30u);
}

}  // namespace
}  // namespace pactrain::trainer
