// Which trainers an agent takes, and in what words it refuses the others.
#include "agent/core/agent_state.h"
#include "agent/core/test_pair.h"
#include "base/status_matchers.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using base::StatusIs;
using testing::AllOf;
using testing::HasSubstr;

TEST(Hello, EachRefusalHasItsCodeAndSaysWhy) {
  Options options = OptionsOf("x", "a");
  options.max_memory_bytes = 3 * kBytes;
  auto state = *AgentState::Create(options);
  wire::Hello hello = MakeHello(0);
  ASSERT_OK_AND_ASSIGN(AgentState::HelloGrant grant, state->CheckHello(hello));
  EXPECT_EQ(grant.bytes, kBytes);
  Node node("n", "a");
  state->Handle(TrainerHello{1,
                             hello,
                             {absl::MakeConstSpan(node.slot, kBytes),
                              absl::MakeSpan(node.result, kBytes)}},
                absl::ZeroDuration());

  const auto check = [&](void (*spoil)(wire::Hello&)) {
    wire::Hello other = MakeHello(1);
    spoil(other);
    return state->CheckHello(other).status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_OK(check([](wire::Hello&) {}));
  EXPECT_THAT(check([](wire::Hello& h) { h.version = wire::kVersion + 1; }),
              StatusIs(kInvalid, HasSubstr("version")));
  EXPECT_THAT(check([](wire::Hello& h) { h.rank = 2; }),
              StatusIs(kInvalid, HasSubstr("rank")));
  EXPECT_THAT(check([](wire::Hello& h) { h.slot_bytes = ~0ull; }),
              StatusIs(kInvalid, HasSubstr("slot_bytes")));
  EXPECT_THAT(check([](wire::Hello& h) { SetText("No Name", h.job); }),
              StatusIs(kInvalid, HasSubstr("job")));
  EXPECT_THAT(check([](wire::Hello& h) { h.attach_id = {}; }),
              StatusIs(kInvalid, HasSubstr("attach_id")));
  EXPECT_THAT(check([](wire::Hello& h) { SetText("b", h.site); }),
              StatusIs(kPrecondition, HasSubstr("site b")));
  EXPECT_THAT(check([](wire::Hello& h) { h.rank = 0; }),
              StatusIs(kPrecondition, HasSubstr("rank 0")));
  EXPECT_THAT(check([](wire::Hello& h) { h.world_size = 3; }),
              StatusIs(kPrecondition, HasSubstr("world_size")));
  EXPECT_THAT(check([](wire::Hello& h) {
                h.model_digest = {6, 6};
              }),
              StatusIs(kPrecondition, HasSubstr("model")));
  EXPECT_THAT(
      check([](wire::Hello& h) { SetText("run-2", h.launch); }),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory")));
}

TEST(Hello, sec_TheSameRefusalIsLoggedOnceAMinute) {
  const auto state = *AgentState::Create(OptionsOf("x", "a"));
  wire::Hello hello = MakeHello(0);
  hello.version = wire::kVersion + 1;
  int lines = 0, told = 0;
  const auto attach = [&](absl::Duration now) {
    for (const Effect& effect :
         state->Handle(TrainerHello{1, hello, {}, {}}, now)) {
      lines += std::holds_alternative<LogLine>(effect);
      told += std::holds_alternative<SendTrainer>(effect);
    }
  };
  for (int i = 0; i < 100; ++i) attach(absl::Seconds(1));
  EXPECT_EQ(lines, 1);
  EXPECT_EQ(told, 100);
  attach(absl::Seconds(61));
  EXPECT_EQ(lines, 2);
}

TEST(Hello, sec_limits_RanksModelsElementsAndSteps) {
  const auto state = *AgentState::Create(OptionsOf("x", "a"));
  const auto expect_limit = [&](void (*set)(wire::Hello&, int above),
                                const char* field) {
    wire::Hello hello = MakeHello(0);
    set(hello, 0);
    EXPECT_OK(state->CheckHello(hello));
    set(hello, 1);
    EXPECT_THAT(state->CheckHello(hello),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field)));
  };
  expect_limit(
      [](wire::Hello& h, int n) { h.world_size = protocol::kMaxRanks + n; },
      "world_size");
  expect_limit(
      [](wire::Hello& h, int n) { h.model = protocol::kMaxModels - 1 + n; },
      "model");
  expect_limit(
      [](wire::Hello& h, int n) { h.elements = protocol::kMaxElements + n; },
      "elements");
  expect_limit(
      [](wire::Hello& h, int n) { h.resume_step = protocol::kMaxStep + n; },
      "resume_step");
  expect_limit(
      [](wire::Hello& h, int n) { h.committed = protocol::kMaxStep + n; },
      "committed");
}

TEST_F(Pair, ASecondOfARankIsToldThatItsLaunchRuns) {
  Begin();
  EXPECT_THAT(x_.state->CheckHello(MakeHello(0)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("attached already at agent"),
                             HasSubstr("another PACTRAIN_JOB_ID"))));
}

TEST(Hello, sec_limits_TrainersOfAnAgent) {
  const auto state = *AgentState::Create(OptionsOf("x", "a"));
  Node node("n", "a");  // Its memory is all trainers'.
  const auto hello = [](uint32_t rank) { return MakeHello(rank, 1000); };
  for (uint32_t rank = 0; rank < protocol::kMaxTrainersPerAgent; ++rank) {
    ASSERT_OK(state->CheckHello(hello(rank)));
    state->Handle(TrainerHello{rank + 1,
                               hello(rank),
                               {absl::MakeConstSpan(node.slot, kBytes),
                                absl::MakeSpan(node.result, kBytes)}},
                  absl::ZeroDuration());
  }
  EXPECT_THAT(state->CheckHello(hello(500)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("has 64 trainers on this node")));
}

}  // namespace
}  // namespace pactrain::agent
