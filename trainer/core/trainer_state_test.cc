#include "trainer/core/trainer_state.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/core/text.h"

namespace pactrain::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;
using wire::Code;

constexpr wire::Digest128 kLayout = {1, 2};
constexpr wire::Digest128 kMask = {3, 4};
constexpr uint64_t kBaseStep = 10;

TrainerOptions Options() {
  TrainerOptions options;
  options.agent = "unix:/run/agent.sock";
  options.job = "job";
  options.world_size = 4;
  options.elements = 1000;
  options.attach_timeout = seconds(30);
  return options;
}

wire::Decision FullDecision() {
  wire::Decision decision = {};
  decision.version = 1;
  decision.mode = 1;
  decision.codec = 1;
  return decision;
}

wire::Decision CompactedDecision() {
  wire::Decision decision = FullDecision();
  decision.version = 2;
  decision.mode = 2;
  decision.mask_digest = kMask;
  decision.layout_digest = kLayout;
  return decision;
}

wire::Digest128 BucketLayout(uint32_t index) { return {100, index}; }

Bucket MakeBucket(uint32_t index, uint64_t elements, bool last) {
  Bucket bucket;
  bucket.index = index;
  bucket.elements = elements;
  bucket.layout = BucketLayout(index);
  bucket.last = last;
  return bucket;
}

// Two buckets of 100 elements; every fourth element is kept.
MaskSet Masks() {
  MaskSet set;
  set.mask_digest = kMask;
  set.layout_digest = kLayout;
  const std::vector<uint8_t> bitmap(13, 0x11);
  for (uint32_t b = 0; b < 2; ++b) {
    set.buckets.push_back(
        {BucketLayout(b),
         std::make_shared<const kernels::MaskPlan>(bitmap.data(), 100)});
  }
  return set;
}

class TrainerStateTest : public ::testing::Test {
 protected:
  explicit TrainerStateTest(TrainerOptions options = Options())
      : state_(options, now_) {}

  template <typename Message>
  Event Say(const Message& message) {
    return state_.OnMessage(now_, &message, sizeof(message));
  }

  wire::Attached Attached(const wire::Decision& decision) const {
    wire::Attached message = {};
    message.header = {wire::Kind::kAttached, sizeof(message)};
    message.world_size = 4;
    message.donor = wire::kNoRank;
    message.base_step = kBaseStep;
    message.slot_bytes = state_.wanted_slot_bytes();
    message.result_bytes = message.slot_bytes;
    message.step_deadline_ms = 60000;
    message.decision = decision;
    return message;
  }

  void Attach(const wire::Decision& decision = FullDecision()) {
    ASSERT_EQ(Say(Attached(decision)), Event::kAttached);
  }

  // Places and submits; the message that goes to the agent.
  wire::Submit Submit(const Bucket& bucket, uint64_t outside = 0) {
    Placement placement;
    const Error error = state_.Place(now_, bucket, &placement);
    EXPECT_TRUE(error.ok()) << error.text;
    return state_.Submit(now_, placement, placement.elements, outside);
  }

  Error TryPlace(const Bucket& bucket) {
    Placement placement;
    return state_.Place(now_, bucket, &placement);
  }

  wire::Committed Committed(uint64_t step, uint32_t attempt = 1) {
    wire::Committed message = {};
    message.header = {wire::Kind::kCommitted, sizeof(message)};
    message.step = step;
    message.attempt = attempt;
    message.world_size = 4;
    message.next = FullDecision();
    return message;
  }

  wire::Resubmit Resubmit(uint64_t step, uint32_t attempt) {
    wire::Resubmit message = {};
    message.header = {wire::Kind::kResubmit, sizeof(message)};
    message.step = step;
    message.attempt = attempt;
    return message;
  }

  wire::Failed Failed(uint64_t step, Code code, bool final) {
    wire::Failed message = {};
    message.header = {wire::Kind::kFailed, sizeof(message)};
    message.step = step;
    message.code = code;
    message.final = final ? 1 : 0;
    SetText(message.text, "site a has x, site b has y.\nUse one model.");
    return message;
  }

  void SubmitTwo() {
    Submit(MakeBucket(0, 100, false));
    Submit(MakeBucket(1, 100, true));
  }

  Time now_ = seconds(1000);
  TrainerState state_;
  StepReport report_;
};

TEST_F(TrainerStateTest, HelloSaysWhatWasAskedFor) {
  const wire::Hello hello = state_.MakeHello();
  EXPECT_EQ(hello.header.bytes, sizeof(wire::Hello));
  EXPECT_EQ(hello.version, wire::kVersion);
  EXPECT_STREQ(hello.job, "job");
  EXPECT_EQ(hello.slot_bytes, 4 * 1000 + 64 * 4096);
}

TEST_F(TrainerStateTest, WaitingTextIsNewOnlyWhenItChanges) {
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  SetText(waiting.text, "waiting for rank 3");
  EXPECT_EQ(Say(waiting), Event::kWaiting);
  EXPECT_EQ(Say(waiting), Event::kNone);
  EXPECT_EQ(state_.waiting_text(), "waiting for rank 3");
}

TEST_F(TrainerStateTest, AttachTimeoutNamesWhatWasWaitedFor) {
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  SetText(waiting.text, "waiting for rank 3");
  Say(waiting);
  EXPECT_EQ(state_.deadline(), now_ + seconds(30));
  now_ += seconds(29);
  EXPECT_EQ(state_.OnTick(now_), Event::kNone);
  now_ += seconds(1);
  EXPECT_EQ(state_.OnTick(now_), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kCoordinatorUnavailable);
  EXPECT_EQ(state_.error().text,
            "attach to job \"job\" ended after 30.0 s: waiting for rank 3.\n"
            "Start the ranks that are missing, or wait longer "
            "(PACTRAIN_ATTACH_TIMEOUT). If all run, compare PACTRAIN_JOB_ID: "
            "all ranks of a training have one job name, here \"job\", and no "
            "other training has it.");
}

TEST_F(TrainerStateTest, AttachTimeoutForTheCoordinatorNamesItsLog) {
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  SetText(waiting.text, "waiting for the coordinator: it belongs to another");
  Say(waiting);
  now_ += seconds(30);
  EXPECT_EQ(state_.OnTick(now_), Event::kOver);
  EXPECT_THAT(state_.error().text, HasSubstr("belongs to another"));
  EXPECT_THAT(state_.error().text,
              HasSubstr("\nLook at the coordinator's log"));
  EXPECT_THAT(state_.error().text, Not(HasSubstr("missing")));
}

TEST_F(TrainerStateTest, AttachTimeoutForOtherSitesNamesTheVariable) {
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  SetText(waiting.text, "waiting for rank 3; set PACTRAIN_SITES to one value");
  Say(waiting);
  now_ += seconds(30);
  EXPECT_EQ(state_.OnTick(now_), Event::kOver);
  EXPECT_THAT(state_.error().text, HasSubstr("\nCorrect PACTRAIN_SITES"));
  EXPECT_THAT(state_.error().text, Not(HasSubstr("compare PACTRAIN_JOB_ID")));
}

TEST_F(TrainerStateTest, SilentAgentAtAttachIsUnresponsive) {
  now_ += seconds(30);
  EXPECT_EQ(state_.OnTick(now_), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kAgentUnresponsive);
}

TEST_F(TrainerStateTest, RefusedAttachIsFinalWhateverTheFlagSays) {
  EXPECT_EQ(Say(Failed(~0ull, Code::kRefused, false)), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kRefused);
  EXPECT_TRUE(state_.error().final);
  EXPECT_EQ(state_.error().text,
            "attach to job \"job\" was refused: site a has x, site b has y.\n"
            "Use one model.");
}

TEST_F(TrainerStateTest, SlotSmallerThanAskedForIsRefused) {
  wire::Attached attached = Attached(FullDecision());
  attached.slot_bytes -= 64;
  EXPECT_EQ(Say(attached), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kInternal);
}

TEST_F(TrainerStateTest, AnotherPlaceThanAskedForIsRefused) {
  wire::Attached attached = Attached(FullDecision());
  attached.world_size = 3;
  EXPECT_EQ(Say(attached), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kInternal);
  EXPECT_THAT(state_.error().text, HasSubstr("rank 0 of 3"));
  EXPECT_FALSE(state_.error().may_rejoin);
}

class ElasticTest : public TrainerStateTest {
 protected:
  static TrainerOptions Elastic() {
    TrainerOptions options = Options();
    options.rank = 3;
    options.on_shrink = 2;
    options.last_generation = 7;
    options.resume_step = 40;
    return options;
  }
  ElasticTest() : TrainerStateTest(Elastic()) {}
  void AttachSmaller() {
    wire::Attached attached = Attached(FullDecision());
    attached.rank = 1;
    attached.world_size = 2;
    attached.donor = 1;
    ASSERT_EQ(Say(attached), Event::kAttached);
  }
};

TEST_F(ElasticTest, HelloSaysWhoseStateItHolds) {
  const wire::Hello hello = state_.MakeHello();
  EXPECT_EQ(hello.on_shrink, 2);
  EXPECT_EQ(hello.last_generation, 7u);
  EXPECT_EQ(hello.resume_step, 40u);
}

TEST_F(ElasticTest, AnotherPlaceIsTakenAndCounts) {
  AttachSmaller();
  Submit(MakeBucket(0, 100, true));
  wire::Committed committed = Committed(kBaseStep);
  committed.world_size = 2;
  EXPECT_EQ(Say(committed), Event::kStepDone);
  StepReport report;
  EXPECT_TRUE(state_.TakeStep(&report).ok());
  EXPECT_EQ(report.world_size, 2u);
}

TEST_F(ElasticTest, OfAChangeOfRanksItMayRejoin) {
  AttachSmaller();
  wire::Failed failed = {};
  failed.header = {wire::Kind::kFailed, sizeof(failed)};
  failed.step = ~uint64_t{0};
  failed.code = Code::kStepNotApplied;
  failed.final = 1;
  failed.may_rejoin = 1;
  EXPECT_EQ(Say(failed), Event::kOver);
  EXPECT_TRUE(state_.error().may_rejoin);
}

TEST_F(ElasticTest, OfALostAgentItMayRejoin) {
  AttachSmaller();
  EXPECT_EQ(state_.OnClosed(now_), Event::kOver);
  EXPECT_TRUE(state_.error().may_rejoin);
  EXPECT_THAT(state_.error().text, Not(HasSubstr("checkpoint")));
}

TEST_F(ElasticTest, OfASilentAgentItMayRejoin) {
  AttachSmaller();
  Submit(MakeBucket(0, 100, true));
  now_ += seconds(62);
  EXPECT_EQ(state_.OnTick(now_), Event::kOver);
  EXPECT_TRUE(state_.error().may_rejoin);
  EXPECT_THAT(state_.error().text, Not(HasSubstr("checkpoint")));
}

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
  EXPECT_EQ(report_.mode, Mode::kFull);
  EXPECT_EQ(report_.elements, 200u);
  EXPECT_EQ(report_.submitted_elements, 200u);
  EXPECT_EQ(report_.sent_bytes, 5u);
  EXPECT_EQ(report_.wait, milliseconds(250));
  EXPECT_EQ(state_.decision().version, 2u);
  EXPECT_EQ(state_.next_step(), kBaseStep + 1);
  EXPECT_EQ(state_.placements().size(), 2u);
  EXPECT_TRUE(state_.results().committed);
  EXPECT_EQ(Submit(MakeBucket(0, 100, true)).step, kBaseStep + 1);
  EXPECT_FALSE(state_.results().committed);
}

TEST_F(TrainerStateTest, KnownLayoutIsCompacted) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  const wire::Submit submit = Submit(MakeBucket(0, 100, false));
  EXPECT_EQ(submit.mode, 2);
  EXPECT_EQ(submit.elements, 25u);
  EXPECT_TRUE(Same(submit.mask_digest, kMask));
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).offset, 128u);
  Say(Committed(kBaseStep));
  state_.TakeStep(&report_);
  EXPECT_EQ(report_.mode, Mode::kCompacted);
  EXPECT_EQ(report_.submitted_elements, 50u);
}

wire::Decision TernaryDecision() {
  wire::Decision decision = CompactedDecision();
  decision.mode = 3;
  decision.codec = static_cast<uint8_t>(Codec::kLevels7);
  return decision;
}

TEST_F(TrainerStateTest, TernaryIsOfTheKeptElements) {
  Attach(TernaryDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  const wire::Submit submit = Submit(MakeBucket(0, 100, true));
  EXPECT_EQ(submit.mode, 3);
  EXPECT_EQ(submit.elements, 25u);
  EXPECT_TRUE(Same(submit.mask_digest, kMask));
  Say(Committed(kBaseStep));
  state_.TakeStep(&report_);
  EXPECT_EQ(report_.mode, Mode::kTernary);
  EXPECT_EQ(report_.codec, Codec::kLevels7);
}

TEST_F(TrainerStateTest, TernaryWithoutAMaskSetIsOfAllElements) {
  wire::Decision decision = TernaryDecision();
  decision.mask_digest = decision.layout_digest = {};
  Attach(decision);
  const wire::Submit submit = Submit(MakeBucket(0, 100, true));
  EXPECT_EQ(submit.mode, 3);
  EXPECT_EQ(submit.elements, 100u);
  EXPECT_TRUE(Same(submit.mask_digest, {}));
}

TEST_F(TrainerStateTest, ABucketThatTernaryDoesNotHoldForIsSentExactly) {
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
  EXPECT_EQ(report_.mode, Mode::kFull);
  EXPECT_EQ(report_.codec, Codec::kFp32);
}

TEST_F(TrainerStateTest, UnknownBucketLayoutIsSentFull) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  Bucket rebuilt = MakeBucket(0, 100, false);
  rebuilt.layout = {55, 55};
  EXPECT_EQ(Submit(rebuilt).mode, 1);
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).mode, 2);
  Say(Committed(kBaseStep));
  state_.TakeStep(&report_);
  EXPECT_EQ(report_.mode, Mode::kFull);
}

TEST_F(TrainerStateTest, WithoutTheDecisionsMasksBucketsAreSentFull) {
  Attach(CompactedDecision());
  EXPECT_EQ(Submit(MakeBucket(0, 100, true)).mode, 1);
}

TEST_F(TrainerStateTest, ExclusiveOrIsNeverCompacted) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  state_.RequireDense("asked");
  Bucket bucket = MakeBucket(0, 100, true);
  bucket.op = Op::kXor;
  const wire::Submit submit = Submit(bucket);
  EXPECT_EQ(submit.mode, 1);
  EXPECT_EQ(submit.violation, 0);
}

TEST_F(TrainerStateTest, NewestFourMaskSetsAreHeld) {
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

TEST_F(TrainerStateTest, MasksMayNotChangeInAnOpenStep) {
  Attach();
  Submit(MakeBucket(0, 100, false));
  EXPECT_EQ(state_.SetMasks(Masks()).code, Code::kInvalidArgument);
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
  EXPECT_TRUE(report_.dense);
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
  EXPECT_FALSE(report_.dense);
}

TEST_F(TrainerStateTest, ElementsOutsideTheMaskMakeAViolation) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  const wire::Submit submit = Submit(MakeBucket(0, 100, true), 7);
  EXPECT_EQ(submit.violation, 1);
  EXPECT_THAT(submit.violation_text, HasSubstr("7 elements of bucket 0"));
}

TEST_F(TrainerStateTest, GseDoesNotCountOutsideTheMask) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  Placement placement;
  ASSERT_TRUE(state_.Place(now_, MakeBucket(0, 100, true), &placement).ok());
  EXPECT_FALSE(placement.count_outside);
}

class NoGseTest : public TrainerStateTest {
 protected:
  NoGseTest()
      : TrainerStateTest([] {
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

TEST_F(TrainerStateTest, RequiredDenseIsAViolationWithItsReason) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  state_.RequireDense("weights were loaded");
  const wire::Submit submit = Submit(MakeBucket(0, 100, false));
  EXPECT_EQ(submit.violation, 1);
  EXPECT_STREQ(submit.violation_text, "weights were loaded");
  state_.RequireDense("");
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).violation, 0);
}

TEST_F(TrainerStateTest, RequiredDenseIsMetByFullInFp32) {
  Attach();
  state_.RequireDense("weights were loaded");
  EXPECT_EQ(Submit(MakeBucket(0, 100, true)).violation, 0);
}

TEST_F(TrainerStateTest, VoteOutsideTheDecisionIsAViolationUntilItIsInForce) {
  Attach(CompactedDecision());
  ASSERT_TRUE(state_.SetMasks(Masks()).ok());
  wire::Vote vote = {};
  TrainerState::VoteOptions options;
  options.mask_digest = {8, 8};
  options.inside_decision = false;
  ASSERT_TRUE(state_.Vote(options, &vote).ok());
  EXPECT_EQ(vote.inside_decision, 0);
  EXPECT_EQ(Submit(MakeBucket(0, 100, false)).violation, 1);
  options.mask_digest = kMask;
  ASSERT_TRUE(state_.Vote(options, &vote).ok());
  EXPECT_EQ(Submit(MakeBucket(1, 100, true)).violation, 0);
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

TEST_F(TrainerStateTest, DamagedPacketsBreakTheProtocol) {
  wire::Attached attached = Attached(FullDecision());
  const auto refused = [&](const wire::Attached& message, size_t bytes) {
    TrainerState fresh(Options(), now_);
    return fresh.OnMessage(now_, &message, bytes) == Event::kOver &&
           fresh.error().code == Code::kInternal;
  };
  EXPECT_TRUE(refused(attached, 3));
  EXPECT_TRUE(refused(attached, sizeof(attached) - 1));
  wire::Attached changed = attached;
  changed.header.kind = wire::Kind::kHello;
  EXPECT_TRUE(refused(changed, sizeof(changed)));
  changed = attached;
  changed.decision.mode = 4;
  EXPECT_TRUE(refused(changed, sizeof(changed)));
  changed = attached;
  for (uint8_t codec : {0, 8}) {
    changed.decision.codec = codec;
    EXPECT_TRUE(refused(changed, sizeof(changed)));
  }
  changed.decision.codec = 7;
  EXPECT_FALSE(refused(changed, sizeof(changed)));
  changed = attached;
  changed.step_deadline_ms = 0;
  EXPECT_TRUE(refused(changed, sizeof(changed)));
  changed = attached;
  std::memset(changed.agent, 'x', sizeof(changed.agent));
  EXPECT_TRUE(refused(changed, sizeof(changed)));
  EXPECT_FALSE(refused(attached, sizeof(attached)));
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

TEST_F(TrainerStateTest, NothingIsSubmittedOrVotedBeforeAttached) {
  EXPECT_EQ(TryPlace(MakeBucket(0, 1, true)).code, Code::kInvalidArgument);
  wire::Vote vote;
  EXPECT_EQ(state_.Vote({}, &vote).code, Code::kInvalidArgument);
}

TEST_F(TrainerStateTest, ParametersDigestTravelsWithTheLastBucket) {
  Attach();
  Bucket bucket = MakeBucket(0, 100, true);
  bucket.parameters = {5, 6};
  EXPECT_TRUE(Same(Submit(bucket).parameters, {5, 6}));
}

TEST(TrainerOptionsTest, OptionsOutOfRangeAreNamed) {
  EXPECT_TRUE(CheckOptions(Options()).ok());
  const auto text = [](auto change) {
    TrainerOptions options = Options();
    change(options);
    EXPECT_EQ(CheckOptions(options).code, Code::kInvalidArgument);
    return CheckOptions(options).text;
  };
  EXPECT_THAT(text([](auto& o) { o.job = ""; }), HasSubstr("job"));
  EXPECT_THAT(text([](auto& o) { o.job = std::string(64, 'a'); }),
              HasSubstr("job has 64 characters"));
  EXPECT_THAT(text([](auto& o) { o.world_size = 0; }), HasSubstr("world_size"));
  EXPECT_THAT(text([](auto& o) { o.rank = 4; }), HasSubstr("rank is 4"));
  EXPECT_THAT(text([](auto& o) { o.model = 16; }), HasSubstr("model"));
  EXPECT_THAT(text([](auto& o) { o.elements = 0; }), HasSubstr("elements"));
  EXPECT_THAT(text([](auto& o) { o.slot_bytes = ~0ull; }),
              HasSubstr("slot_bytes"));
  EXPECT_THAT(text([](auto& o) { o.attach_timeout = Time::zero(); }),
              HasSubstr("attach_timeout"));
}

}  // namespace
}  // namespace pactrain::trainer
