// What a trainer asks for and what it takes until it is attached, and how it
// may come back.
#include <chrono>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "trainer/core/test_trainer.h"

namespace pactrain::trainer {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;
using wire::Code;
using TrainerAttachTest = TestTrainer;

TEST_F(TrainerAttachTest, HelloSaysWhatWasAskedFor) {
  const wire::Hello hello = state_.MakeHello();
  EXPECT_EQ(hello.header.bytes, sizeof(wire::Hello));
  EXPECT_EQ(hello.version, wire::kVersion);
  EXPECT_STREQ(hello.job, "job");
  EXPECT_EQ(hello.slot_bytes, 4 * 1000 + 64 * 4096);
}

TEST_F(TrainerAttachTest, WaitingTextIsNewOnlyWhenItChanges) {
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  SetText(waiting.text, "waiting for rank 3");
  EXPECT_EQ(Say(waiting), Event::kWaiting);
  EXPECT_EQ(Say(waiting), Event::kNone);
  EXPECT_EQ(state_.waiting_text(), "waiting for rank 3");
}

TEST_F(TrainerAttachTest, AttachTimeoutNamesWhatWasWaitedFor) {
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

TEST_F(TrainerAttachTest, AttachTimeoutForTheCoordinatorNamesItsLog) {
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

TEST_F(TrainerAttachTest, AttachTimeoutForOtherSitesNamesTheVariable) {
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  SetText(waiting.text, "waiting for rank 3; set PACTRAIN_SITES to one value");
  Say(waiting);
  now_ += seconds(30);
  EXPECT_EQ(state_.OnTick(now_), Event::kOver);
  EXPECT_THAT(state_.error().text, HasSubstr("\nCorrect PACTRAIN_SITES"));
  EXPECT_THAT(state_.error().text, Not(HasSubstr("compare PACTRAIN_JOB_ID")));
}

TEST_F(TrainerAttachTest, SilentAgentAtAttachIsUnresponsive) {
  now_ += seconds(30);
  EXPECT_EQ(state_.OnTick(now_), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kAgentUnresponsive);
}

TEST_F(TrainerAttachTest, RefusedAttachIsFinalWhateverTheFlagSays) {
  EXPECT_EQ(Say(Failed(~0ull, Code::kRefused, false)), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kRefused);
  EXPECT_TRUE(state_.error().final);
  EXPECT_EQ(state_.error().text,
            "attach to job \"job\" was refused: site a has x, site b has y.\n"
            "Use one model.");
}

TEST_F(TrainerAttachTest, SlotSmallerThanAskedForIsRefused) {
  wire::Attached attached = Attached(FullDecision());
  attached.slot_bytes -= 64;
  EXPECT_EQ(Say(attached), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kInternal);
}

TEST_F(TrainerAttachTest, AnotherPlaceThanAskedForIsRefused) {
  wire::Attached attached = Attached(FullDecision());
  attached.world_size = 3;
  EXPECT_EQ(Say(attached), Event::kOver);
  EXPECT_EQ(state_.error().code, Code::kInternal);
  EXPECT_THAT(state_.error().text, HasSubstr("rank 0 of 3"));
  EXPECT_FALSE(state_.error().may_rejoin);
}

class ElasticTest : public TrainerAttachTest {
 protected:
  static TrainerOptions Elastic() {
    TrainerOptions options = Options();
    options.hello.rank = 3;
    options.hello.on_shrink = 2;
    options.hello.lineage = {6, 7};
    options.hello.committed = 30;
    options.hello.replace = 1;
    options.hello.resume_step = 40;
    return options;
  }
  ElasticTest() : TrainerAttachTest(Elastic()) {}
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
  EXPECT_EQ(hello.lineage.hi, 6u);
  EXPECT_EQ(hello.lineage.lo, 7u);
  EXPECT_EQ(hello.committed, 30u);
  EXPECT_EQ(hello.replace, 1);
  EXPECT_EQ(hello.resume_step, 40u);
}

TEST_F(ElasticTest, AnotherPlaceIsTakenAndCounts) {
  AttachSmaller();
  Submit(MakeBucket(0, 100, true));
  wire::Committed committed = Committed(kBaseStep);
  committed.world_size = 2;
  EXPECT_EQ(Say(committed), Event::kStepDone);
  pt_step report;
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

TEST_F(TrainerAttachTest, NothingIsSubmittedOrVotedBeforeAttached) {
  EXPECT_EQ(TryPlace(MakeBucket(0, 1, true)).code, Code::kInvalidArgument);
  wire::Vote vote = {};
  EXPECT_EQ(state_.Vote("", &vote).code, Code::kInvalidArgument);
}

TEST_F(TrainerAttachTest, DamagedPacketsBreakTheProtocol) {
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

TEST(TrainerOptionsTest, OptionsOutOfRangeAreNamed) {
  EXPECT_TRUE(CheckOptions(Options()).ok());
  const auto text = [](auto change) {
    TrainerOptions options = Options();
    change(options);
    EXPECT_EQ(CheckOptions(options).code, Code::kInvalidArgument);
    return CheckOptions(options).text;
  };
  EXPECT_THAT(text([](auto& o) { o.hello.job[0] = 0; }), HasSubstr("job"));
  EXPECT_THAT(text([](auto& o) { o.hello.world_size = 0; }),
              HasSubstr("world_size"));
  EXPECT_THAT(text([](auto& o) { o.hello.rank = 4; }), HasSubstr("rank is 4"));
  EXPECT_THAT(text([](auto& o) { o.hello.model = 16; }), HasSubstr("model"));
  EXPECT_THAT(text([](auto& o) { o.hello.elements = 0; }),
              HasSubstr("elements"));
  EXPECT_THAT(text([](auto& o) { o.hello.slot_bytes = ~0ull; }),
              HasSubstr("slot_bytes"));
  EXPECT_THAT(text([](auto& o) { o.attach_timeout = Time::zero(); }),
              HasSubstr("attach_timeout"));
}

TEST(TrainerOptionsTest, NamesThatDoNotFitAreRefused) {
  wire::Hello hello = {};
  const Error error = SetName("job", std::string(64, 'a'), hello.job);
  EXPECT_EQ(error.code, Code::kInvalidArgument);
  EXPECT_THAT(error.text, HasSubstr("job has 64 characters"));
  EXPECT_FALSE(SetName("job", std::string("a\0b", 3), hello.job).ok());
  EXPECT_STREQ(hello.job, "");
  EXPECT_TRUE(SetName("job", std::string(63, 'a'), hello.job).ok());
  EXPECT_EQ(hello.job, std::string(63, 'a'));
}

}  // namespace
}  // namespace pactrain::trainer
