// Session and word exchanges against a fake agent.
#include "trainer/cpp/session.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/cpp/words.h"
#include "trainer/fake_agent.h"

namespace pactrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using trainer::FakeAgent;
using wire::Code;

SessionOptions Options(const FakeAgent& agent) {
  return {.config = {.agent = agent.address(),
                     .job = "job",
                     .launch = "launch",
                     .rank = 1,
                     .world_size = 4,
                     .attach_timeout_seconds = 20},
          .model_summary = "a model",
          .elements = 1000};
}

Bucket OneBucket(std::vector<float>& data) {
  return {.parts = {{data.data(), data.size()}},
          .out = data.data(),
          .layout = {1, 1},
          .last = true};
}

TEST(SessionTest, ARankThatFailsIsRefusedWithItsErrorInThePlaceOfAModel) {
  FakeAgent agent([](FakeAgent& a) {
    const wire::Hello hello = a.Accept();
    EXPECT_EQ(hello.rank, 1u);
    EXPECT_STREQ(hello.model_summary, "no model, but: masks are wrong.");
    a.SendAttached(FakeAgent::AttachedFor(hello));  // All have failed alike.
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  internal::TellFailure(Options(agent).config, 0, "masks are wrong.\nMend it.");
}

TEST(SessionTest, TellsTheAgentWhoItIsAndSaysGoodbye) {
  FakeAgent agent([](FakeAgent& a) {
    const wire::Hello hello = a.Accept();
    EXPECT_STREQ(hello.job, "job");
    EXPECT_STREQ(hello.launch, "launch");
    EXPECT_STREQ(hello.model_summary, "a model");
    EXPECT_EQ(hello.rank, 1u);
    a.SendWaiting("waiting for rank 3");
    a.SendAttached(FakeAgent::AttachedFor(hello));
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  std::vector<std::string> said;
  const Session session(Options(agent),
                        [&](const std::string& text) { said.push_back(text); });
  EXPECT_THAT(said, ElementsAre("waiting for rank 3"));
  EXPECT_EQ(session.next_step(), 7u);
  EXPECT_EQ(session.world_size(), 4u);
  EXPECT_EQ(session.site(), "north");
  EXPECT_EQ(session.decision().mode, Mode::kFull);
}

TEST(SessionTest, DeclaresItsMasksAsItAttaches) {
  FakeAgent agent([](FakeAgent& a) {
    const wire::Hello hello = a.Accept();
    EXPECT_EQ(hello.mask_digest.hi, 5u);
    EXPECT_EQ(hello.layout_digest.hi, 6u);
    EXPECT_EQ(hello.kept_elements, 300u);
    EXPECT_EQ(hello.declared_elements, 1000u);
    EXPECT_EQ(hello.activate_every, 4u);
    EXPECT_EQ(hello.pin_from, 9u);
    EXPECT_EQ(hello.pin_mode, PT_TERNARY);
    EXPECT_EQ(hello.pin_codec, PT_CODEC_LEVELS7);
    a.SendAttached(FakeAgent::AttachedFor(hello));
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  SessionOptions options = Options(agent);
  options.declared = {.layout_digest = {6, 0},
                      .mask_digest = {5, 0},
                      .kept_elements = 300,
                      .elements = 1000};
  options.onset = OnsetFrom(0, "TERNARY 7", 9);
  const Session session(options);
}

TEST(SessionTest, AStepGivesTheMean) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    a.Answer(submits, 8.0f);
    wire::Decision next = {};
    next.version = 2;
    next.mode = PT_FULL;
    next.codec = PT_CODEC_FP32;
    a.SendCommitted(submits.back(), next);
  });
  Session session(Options(agent));
  std::vector<float> data = {1, 2, 3};
  session.Submit(OneBucket(data));
  const StepResult step = session.Wait();
  EXPECT_THAT(data, ElementsAre(2, 4, 6));
  EXPECT_EQ(step.step, 7u);
  EXPECT_EQ(step.sent_bytes, 11u);
  EXPECT_EQ(step.next.version, 2u);
  EXPECT_EQ(ModeText(step.mode, step.codec), "FULL fp32");
}

TEST(SessionTest, AFailedStepIsItsTypedError) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    a.ReceiveStep();
    a.SendFailed(7, Code::kStepNotApplied, false, "link down.\nTry again.");
    a.ReceiveStep();
    a.SendFailed(8, Code::kResyncRequired, true, "ranks differ.\nReload.");
  });
  Session session(Options(agent));
  std::vector<float> data = {1};
  session.Submit(OneBucket(data));
  try {
    session.Wait();
    FAIL() << "the step was committed";
  } catch (const StepNotAppliedError& error) {
    EXPECT_STREQ(error.what(), "link down.\nTry again.");
    EXPECT_FALSE(error.final());
  }
  session.Submit(OneBucket(data));
  try {
    session.Wait();
    FAIL() << "the step was committed";
  } catch (const ResyncRequiredError& error) {
    EXPECT_TRUE(error.final());
  }
  EXPECT_TRUE(session.is_final());
}

TEST(SessionTest, OneThatAnExceptionUnwindsIsLostAndHasNotLeft) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    EXPECT_TRUE(a.AtEnd());
  });
  const auto train = [&] {
    const Session session(Options(agent));
    throw PacTrainError("the script's own.\nMend it.");
  };
  EXPECT_THROW(train(), PacTrainError);
}

TEST(SessionTest, ARefusedAttachIsItsTypedError) {
  FakeAgent agent([](FakeAgent& a) {
    a.Accept();
    a.SendFailed(~uint64_t{0}, Code::kRefused, true, "rank 1 twice.\nStop it.");
  });
  EXPECT_THROW(Session{Options(agent)}, RefusedError);
}

TEST(SessionTest, NobodyAtTheAddressIsItsTypedError) {
  SessionOptions options;
  options.config = {.agent = "unix:/nowhere/agent.sock",
                    .job = "job",
                    .launch = "launch",
                    .attach_timeout_seconds = 1};
  options.elements = 1;
  EXPECT_THROW(Session{options}, AgentUnresponsiveError);
  options.config.job = "";
  EXPECT_THROW(Session{options}, InvalidArgument);
}

TEST(WordsTest, BroadcastsBytesOfAnyCount) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    ASSERT_EQ(submits.size(), 1u);
    EXPECT_EQ(submits[0].elements, 2u);  // Words of five bytes.
    EXPECT_EQ(submits[0].op, PT_XOR);
    // Rank 1 has nothing to say.
    EXPECT_EQ(a.slot(submits[0].offset)[0], 0.0f);
    a.result(submits[0].offset)[0] = 1.0f;  // 00 00 80 3f
    a.result(submits[0].offset)[1] = 0.0f;
    wire::Decision next = {};
    next.mode = PT_FULL;
    next.codec = PT_CODEC_FP32;
    a.SendCommitted(submits.back(), next);
  });
  Session session(Options(agent));
  std::vector<uint8_t> bytes = {1, 2, 3, 4, 5};
  internal::BroadcastBytes(session, bytes, {5, 5});
  EXPECT_THAT(bytes, ElementsAre(0, 0, 0x80, 0x3f, 0));
}

}  // namespace
}  // namespace pactrain
