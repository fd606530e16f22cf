// Two agents of one trainer each; what happens under faults is the simulator's
// (tests/sim).
#include "agent/core/agent_state.h"

#include <cstring>

#include "agent/core/test_pair.h"
#include "base/status_matchers.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using base::StatusIs;
using protocol::Digest;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(Pair, AStepIsCommittedAtBoth) {
  Begin();
  ASSERT_NE(x_.Last<wire::Attached>(), nullptr);
  EXPECT_EQ(x_.Last<wire::Attached>()->base_step, 10u);
  Submit(0, OneBucket(10, 50));
  Submit(1, OneBucket(10, 50));
  Deliver();
  for (Node* node : nodes_) {
    ASSERT_NE(node->Last<wire::Committed>(), nullptr);
    EXPECT_EQ(node->Last<wire::Committed>()->step, 10u);
    float value;
    std::memcpy(&value, node->result + 4 * 7, 4);
    EXPECT_EQ(value, 21.0f);
    // One sum of 50 elements in one frame, each way.
    EXPECT_EQ(node->Last<wire::Committed>()->sent_bytes, 264u);
    EXPECT_EQ(node->Last<wire::Committed>()->received_bytes, 264u);
  }
}

TEST_F(Pair, AGenerationsKeyGoesWithItsPeersUntilItsRecordIsDropped) {
  Begin();
  ASSERT_EQ(x_.peers.size(), 1u);
  ASSERT_EQ(x_.peers[0].generations.size(), 1u);
  EXPECT_EQ(x_.peers[0].generations[0].generation, generation_.ComputeDigest());
  EXPECT_TRUE(x_.peers[0].generations[0].key == KeyOf(3));
  Give(x_, TrainerGone{1, "was killed"});
  Pass(absl::Seconds(20));
  EXPECT_EQ(x_.peers.size(), 1u);  // It still answers.
  Pass(OptionsOf("x", "a").step_deadline);
  EXPECT_TRUE(x_.peers.empty());
}

TEST_F(Pair, FramesOfAPeerThatIsNotReadyOnThisConnectionDoNotCount) {
  Begin();
  Give(x_, PeerDisconnected{"y", false, "reset"});
  Give(x_, PeerConnected{"y"});
  queue_.clear();  // y hears and says nothing of that.
  Submit(0, OneBucket(10, 50));
  Submit(1, OneBucket(10, 50));
  Deliver();
  EXPECT_EQ(x_.state->Status()[0].received_bytes, 0u);
  EXPECT_EQ(x_.Last<wire::Committed>(), nullptr);
}

TEST_F(Pair, AnotherProcessOfAMembersNameIsNoMemberOfItsGeneration) {
  Begin();
  // y was started anew: a generation of another model names the new process.
  wire::Hello hello = MakeHello(0);
  hello.model = 1;
  hello.attach_id = {9, 1};
  Give(x_, TrainerHello{2,
                        hello,
                        {absl::MakeConstSpan(x_.slot, kBytes),
                         absl::MakeSpan(x_.result, kBytes)}});
  protocol::Generation other = generation_;
  other.group.model = 1;
  other.members[0].attach_ids = {{9, 1}};
  other.members[1].incarnation = {8, 8};
  Give(x_, protocol::CoordinatorMessage(
               protocol::StartGeneration{other, KeyOf(4)}));
  ASSERT_EQ(x_.peers.size(), 1u);
  EXPECT_EQ(x_.peers[0].incarnation, (Digest{8, 8}));
  ASSERT_EQ(x_.peers[0].generations.size(), 1u);
  EXPECT_EQ(x_.peers[0].generations[0].generation, other.ComputeDigest());

  Give(x_, PeerConnected{"y"});
  queue_.clear();
  const auto say = [&](const protocol::Generation& generation) {
    const protocol::Ready ready{generation.ComputeDigest(),
                                generation.group.model, false};
    Give(x_, PeerControl{"y", {generation.group, ready}});
  };
  say(generation_);
  EXPECT_TRUE(queue_.empty());
  say(other);
  EXPECT_FALSE(queue_.empty());
}

double SquaresOf(const uint8_t* slot, uint64_t elements) {
  double sum = 0;
  for (uint64_t i = 0; i < elements; ++i) {
    float value;
    std::memcpy(&value, slot + 4 * i, 4);
    sum += double{value} * value;
  }
  return sum;
}

TEST_F(Pair, AMeasuredStepIsReportedOnceInSquaresOfWhatTravelled) {
  generation_.base_step = 16;
  generation_.decision.mode = protocol::Mode::kTernary;
  generation_.decision.codec = protocol::Codec::kLevels3;
  Begin();
  for (int i = 0; i < 2; ++i) {
    wire::Submit submit = OneBucket(16, 50);
    submit.mode = 3;
    // The last element is beyond what is not clipped.
    Submit(i, submit, /*last_value=*/1000);
  }
  Deliver();
  Pass(absl::Seconds(2));
  for (Node* node : nodes_) {
    std::vector<protocol::StepReport::Noise> samples;
    for (const protocol::AgentMessage& message : node->to_coordinator) {
      const auto* report = std::get_if<protocol::StepReport>(&message);
      if (report == nullptr) continue;
      samples.insert(samples.end(), report->noise.begin(), report->noise.end());
    }
    ASSERT_EQ(samples.size(), 1);
    const protocol::StepReport::Noise& noise = samples[0];
    EXPECT_EQ(noise.step, 16u);
    EXPECT_EQ(noise.decision_version, 1u);
    // One trainer in each site: what it has is what its site encodes.
    const double squares = SquaresOf(node->slot, 50);
    EXPECT_EQ(noise.local, squares);
    EXPECT_EQ(noise.site, squares);
    EXPECT_NEAR(noise.encoded, squares, 1e-6 * squares);
    EXPECT_GT(noise.clip, 0.1 * noise.encoded);
    EXPECT_LT(noise.clip, noise.error);
    EXPECT_LT(noise.error, noise.encoded);
    // Of two sites that swap the first counts the total.
    EXPECT_DOUBLE_EQ(noise.total,
                     node == &x_ ? SquaresOf(node->result, 50) : 0);
  }
}

TEST_F(Pair, AnotherLayoutIsRefusedNamingBothSides) {
  Begin();
  Submit(0, OneBucket(10, 50));
  Submit(1, OneBucket(10, 60));
  Deliver();
  for (Node* node : nodes_) {
    const auto* failed = node->Last<wire::Failed>();
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->code, wire::Code::kStepNotApplied);
    EXPECT_EQ(failed->final, 0);
    const std::string text = failed->text;
    for (const char* part : {"agent x (site a)", "agent y (site b)",
                             "50 elements", "60 elements"}) {
      EXPECT_THAT(text, HasSubstr(part));
    }
  }
  // The session lives.
  Submit(0, OneBucket(11, 50));
  Submit(1, OneBucket(11, 50));
  Deliver();
  ASSERT_NE(y_.Last<wire::Committed>(), nullptr);
}

TEST_F(Pair, AViolationMakesTheStepDense) {
  Begin();
  Submit(0, OneBucket(10, 50));
  wire::Submit bad = OneBucket(10, 50);
  bad.violation = 1;
  SetText("rank 1 has another mask set", bad.violation_text);
  Submit(1, bad);
  Deliver();
  for (int i = 0; i < 2; ++i) {
    const auto* resubmit = nodes_[i]->Last<wire::Resubmit>();
    ASSERT_NE(resubmit, nullptr);
    EXPECT_THAT(resubmit->text, HasSubstr("another mask set"));
    wire::Submit dense = OneBucket(10, 50);
    dense.attempt = resubmit->attempt;
    dense.dense = 1;
    Submit(i, dense);
  }
  Deliver();
  ASSERT_NE(x_.Last<wire::Committed>(), nullptr);
  EXPECT_EQ(x_.Last<wire::Committed>()->attempt, 2u);
}

TEST_F(Pair, ATrainerIsToldItsPlaceAndWhoHasTheState) {
  generation_.on_shrink = protocol::OnShrink::kPause;
  generation_.donor = 0;
  generation_.needs_state = {1};
  generation_.members[0].ranks = {1};  // Other ones than were asked for.
  generation_.members[1].ranks = {0};
  Begin();
  const auto* attached = x_.Last<wire::Attached>();
  ASSERT_NE(attached, nullptr);
  EXPECT_EQ(attached->rank, 1u);
  EXPECT_EQ(attached->donor, 0u);
  EXPECT_EQ(attached->needs_state, 1);
  EXPECT_EQ(y_.Last<wire::Attached>()->needs_state, 0);
}

// What the trainer of x hears when that of y is gone.
class RejoinTest : public Pair {
 protected:
  const wire::Failed* FailedAfterLoss(protocol::OnShrink on_shrink) {
    generation_.on_shrink = on_shrink;
    Begin();
    Submit(0, OneBucket(10, 50));
    Give(y_, TrainerGone{1, "was killed by signal 9"});
    Deliver();
    return x_.Last<wire::Failed>();
  }
};

TEST_F(RejoinTest, WhereRanksComeAndGoTrainersMayRejoin) {
  const auto* failed = FailedAfterLoss(protocol::OnShrink::kContinue);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->final, 1);
  EXPECT_EQ(failed->may_rejoin, 1);
}

TEST_F(RejoinTest, ElseTheyMayNot) {
  const auto* failed = FailedAfterLoss(protocol::OnShrink::kAbort);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->final, 1);
  EXPECT_EQ(failed->may_rejoin, 0);
}

std::vector<protocol::TrainerLeft> LeftOf(const Node& node) {
  std::vector<protocol::TrainerLeft> all;
  for (const protocol::AgentMessage& message : node.to_coordinator) {
    if (const auto* left = std::get_if<protocol::TrainerLeft>(&message)) {
      all.push_back(*left);
    }
  }
  return all;
}

TEST_F(RejoinTest, TheCoordinatorHearsWhetherOneThatMayRejoinLives) {
  FailedAfterLoss(protocol::OnShrink::kContinue);
  EXPECT_FALSE(x_.closed);
  ASSERT_EQ(LeftOf(x_).size(), 1u);
  EXPECT_TRUE(LeftOf(x_)[0].may_return);
  Give(x_, CoordinatorConnected{});  // Another one.
  ASSERT_EQ(LeftOf(x_).size(), 2u);
  EXPECT_TRUE(LeftOf(x_)[1].may_return);
  Give(x_, TrainerGone{1, "was killed by signal 9"});
  ASSERT_EQ(LeftOf(x_).size(), 3u);
  EXPECT_FALSE(LeftOf(x_)[2].may_return);
  EXPECT_EQ(LeftOf(x_)[2].reason, "was killed by signal 9");
  EXPECT_EQ(LeftOf(x_)[2].attach_id, LeftOf(x_)[0].attach_id);
}

// Its agent was frozen, and sees the new connection first.
TEST_F(RejoinTest, OneThatAttachesAgainReplacesItself) {
  generation_.on_shrink = protocol::OnShrink::kPause;
  Begin();
  Submit(0, OneBucket(10, 50));
  wire::Hello again = MakeHello(0);
  again.attach_id = {9, 9};
  EXPECT_FALSE(x_.state->CheckHello(again).ok());
  again.last_attach_id = MakeHello(0).attach_id;
  ASSERT_OK(x_.state->CheckHello(again));
  Give(x_, TrainerHello{2,
                        again,
                        {absl::MakeConstSpan(x_.slot, kBytes),
                         absl::MakeSpan(x_.result, kBytes)}});
  EXPECT_TRUE(x_.closed);
  ASSERT_EQ(LeftOf(x_).size(), 1u);
  EXPECT_TRUE(LeftOf(x_)[0].may_return);
  const auto* joined =
      std::get_if<protocol::TrainerJoined>(&x_.to_coordinator.back());
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(joined->trainer.attach_id, (Digest{9, 9}));
  Deliver();
  ASSERT_NE(y_.Last<wire::Failed>(), nullptr);
  EXPECT_EQ(y_.Last<wire::Failed>()->may_rejoin, 1);
}

TEST_F(RejoinTest, OneThatMayRejoinCanLeaveForGood) {
  FailedAfterLoss(protocol::OnShrink::kPause);
  Give(x_, TrainerMessage{1, MakeMessage<wire::Detach>(wire::Kind::kDetach)});
  EXPECT_TRUE(x_.closed);
  EXPECT_EQ(LeftOf(x_).back().reason, "detached");
  EXPECT_FALSE(LeftOf(x_).back().may_return);
}

TEST_F(Pair, DifferentParametersAreNoReasonToRejoin) {
  generation_.on_shrink = protocol::OnShrink::kContinue;
  Begin();
  for (int i = 0; i < 2; ++i) {
    wire::Submit submit = OneBucket(10, 50);
    submit.parameters = {static_cast<uint64_t>(i) + 1, 1};
    Submit(i, submit);
  }
  Deliver();
  ASSERT_NE(x_.Last<wire::Failed>(), nullptr);
  EXPECT_EQ(x_.Last<wire::Failed>()->may_rejoin, 0);
}

TEST_F(Pair, ALostPeerBeforeTheVoteMeansNotApplied) {
  Begin();
  Submit(0, OneBucket(10, 50));
  Give(x_, PeerDisconnected{"y", false, "reset"});
  queue_.clear();
  now_ += absl::Seconds(6);
  Give(x_, Tick{});
  const auto* failed = x_.Last<wire::Failed>();
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->code, wire::Code::kStepNotApplied);
  EXPECT_EQ(failed->final, 1);
  EXPECT_TRUE(x_.closed);
}

TEST_F(Pair, ALostPeerAfterTheVoteMeansResync) {
  Begin();
  Submit(0, OneBucket(10, 50));
  Submit(1, OneBucket(10, 50));
  // Agent x gets the data of y, so that it votes, but never y's vote.
  while (!queue_.empty()) {
    auto [node, event] = queue_.front();
    queue_.pop_front();
    const auto* control = std::get_if<PeerControl>(&event);
    const bool vote =
        control != nullptr &&
        std::holds_alternative<protocol::CommitVote>(control->control.body);
    if (node == &x_ && vote) continue;
    Give(*node, event);
  }
  ASSERT_NE(y_.Last<wire::Committed>(), nullptr);
  Give(x_, PeerDisconnected{"y", false, "reset"});
  for (int tick = 0; tick < 120; ++tick) {
    now_ += absl::Milliseconds(100);
    Give(x_, Tick{});
  }
  ASSERT_NE(x_.Last<wire::Failed>(), nullptr);
  EXPECT_EQ(x_.Last<wire::Failed>()->code, wire::Code::kResyncRequired);
}

TEST_F(Pair, sec_limits_AttemptsOfAStep) {
  Begin();
  // Each loss of the connection costs the step an attempt.
  const auto lose = [&](int times) {
    for (int i = 0; i < times; ++i) {
      Give(x_, PeerDisconnected{"y", false, "reset"});
      Give(y_, PeerDisconnected{"x", false, "reset"});
      Give(x_, PeerConnected{"y"});
      Give(y_, PeerConnected{"x"});
      Deliver();
    }
  };
  Submit(0, OneBucket(10, 50));
  lose(protocol::kMaxAttempts - 1);
  Submit(1, OneBucket(10, 50));
  Deliver();
  EXPECT_NE(x_.Last<wire::Committed>(), nullptr);
  EXPECT_EQ(x_.Last<wire::Failed>(), nullptr);
  Submit(0, OneBucket(11, 50));
  lose(protocol::kMaxAttempts);
  ASSERT_NE(x_.Last<wire::Failed>(), nullptr);
  EXPECT_EQ(x_.Last<wire::Failed>()->final, 0);
  EXPECT_THAT(x_.Last<wire::Failed>()->text, HasSubstr("attempt 4 of 4"));
}

TEST_F(Pair, DataThatNobodyOwesIsNotWaitedForBeyondTheDeadline) {
  generation_.plan.swap = false;
  generation_.plan.trees = {{{1, 1}}};
  Begin();
  // x has nothing to send and votes; y, the root, waits for its elements.
  Submit(0, OneBucket(10, 0));
  Submit(1, OneBucket(10, 50));
  Deliver();
  Pass(absl::Seconds(60));
  for (Node* node : nodes_) {
    const auto* failed = node->Last<wire::Failed>();
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->code, wire::Code::kStepNotApplied);
  }
}

TEST_F(Pair, UnequalParametersEndTheGeneration) {
  Begin();
  for (int i = 0; i < 2; ++i) {
    wire::Submit submit = OneBucket(10, 50);
    submit.parameters = {static_cast<uint64_t>(i + 1) << 40, 1};
    Submit(i, submit);
  }
  Deliver();
  for (Node* node : nodes_) {
    ASSERT_NE(node->Last<wire::Failed>(), nullptr);
    EXPECT_EQ(node->Last<wire::Failed>()->code, wire::Code::kResyncRequired);
    EXPECT_THAT(node->Last<wire::Failed>()->text,
                HasSubstr("parameters differ"));
    EXPECT_EQ(node->Last<wire::Committed>(), nullptr);
  }
}

TEST_F(Pair, AnUnknownContextClosesTheConnection) {
  Begin();
  protocol::FrameHeader header;
  header.context = {1, 2};
  Give(x_, PeerData{"y", header, {}});
  ASSERT_EQ(x_.closed_peers.size(), 1u);
  EXPECT_THAT(x_.closed_peers[0], HasSubstr("never told"));
}

TEST_F(Pair, AFloodOfEarlyFramesClosesTheConnection) {
  Begin();
  Submit(1, OneBucket(10, 50));
  ASSERT_FALSE(queue_.empty());
  std::vector<Event> events;
  for (auto& [node, event] : queue_) events.push_back(event);
  queue_.clear();
  for (const Event& event : events) Give(x_, event);
  PeerData frame = std::get<PeerData>(events.back());
  for (int i = 0; i < 6000 && x_.closed_peers.empty(); ++i) Give(x_, frame);
  ASSERT_FALSE(x_.closed_peers.empty());
  EXPECT_THAT(x_.closed_peers[0], HasSubstr("ahead"));
}

TEST_F(Pair, ASubmitThatBreaksTheProtocolEndsOnlyItsGeneration) {
  Begin();
  wire::Submit bad = OneBucket(10, 50);
  bad.offset = 3;
  Submit(0, bad);
  Deliver();
  ASSERT_NE(x_.Last<wire::Failed>(), nullptr);
  EXPECT_EQ(x_.Last<wire::Failed>()->code, wire::Code::kInvalidArgument);
  EXPECT_TRUE(x_.closed);
  ASSERT_NE(y_.Last<wire::Failed>(), nullptr);
  EXPECT_THAT(y_.Last<wire::Failed>()->text, HasSubstr("rank 0"));
}

TEST_F(Pair, ADetachBetweenStepsHurtsOnlyWhoGoesOn) {
  Begin();
  Give(x_, TrainerMessage{1, MakeMessage<wire::Detach>(wire::Kind::kDetach)});
  Deliver();
  EXPECT_TRUE(x_.closed);
  EXPECT_EQ(y_.Last<wire::Failed>(), nullptr);
  Submit(1, OneBucket(10, 50));
  Deliver();
  ASSERT_NE(y_.Last<wire::Failed>(), nullptr);
  EXPECT_EQ(y_.Last<wire::Failed>()->code, wire::Code::kStepNotApplied);
  EXPECT_THAT(y_.Last<wire::Failed>()->text, HasSubstr("rank 0"));
}

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

TEST(Hello, sec_limits_RanksModelsAndElements) {
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

TEST(AgentState, OptionsOutOfRangeAreRefusedByName) {
  Options options = OptionsOf("x", "a");
  options.step_deadline = absl::Milliseconds(1);
  EXPECT_THAT(
      AgentState::Create(options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step_deadline")));
  EXPECT_FALSE(AgentState::Create(OptionsOf("X!", "a")).ok());
}

}  // namespace
}  // namespace pactrain::agent
