// Two agents of one trainer each; what happens under faults is the simulator's
// (tests/sim).
#include "agent/core/agent_state.h"

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "agent/core/test_pair.h"
#include "base/status_matchers.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using base::StatusIs;
using protocol::Digest;
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
    EXPECT_EQ(node->Last<wire::Committed>()->dense_bytes, 200u);
  }
}

TEST_F(Pair, TimeOfAStepIsToldByPhase) {
  Begin();
  Submit(0, OneBucket(10, 50));
  Submit(1, OneBucket(10, 50));
  Deliver();
  Pass(absl::Seconds(2));
  Submit(0, OneBucket(11, 50));
  Deliver();
  Pass(absl::Seconds(1));
  Submit(1, OneBucket(11, 50));
  Deliver();
  const auto sums = [](const Node& node) {
    std::vector<double> sums;
    const auto status = node.state->Status();  // A loop would not keep it.
    for (const base::Histogram& phase : status[0].phases) {
      sums.push_back(phase.sum);
    }
    return sums;
  };
  // Of the first step nobody knows when computing began. Who comes first waits.
  EXPECT_THAT(sums(x_), testing::ElementsAre(2, 1, 0, 0, 0));
  EXPECT_THAT(sums(y_), testing::ElementsAre(3, 0, 0, 0, 0));
}

TEST_F(Pair, BytesAreToldAsSentAsKeptAndAsFullHasThem) {
  generation_.decision.mode = protocol::Mode::kCompacted;
  generation_.decision.mask_digest = {5, 5};
  generation_.decision.layout_digest = {4, 4};
  Begin();
  for (int i = 0; i < 2; ++i) {
    auto vote = MakeMessage<wire::Vote>(wire::Kind::kVote);
    vote.mask_digest = {5, 5};
    vote.layout_digest = {4, 4};
    vote.kept_elements = 25;
    vote.elements = 100;
    Give(*nodes_[i], TrainerMessage{1, vote});
  }
  for (int i = 0; i < 2; ++i) {
    wire::Submit submit = OneBucket(10, 50);
    submit.mode = 2;
    submit.mask_digest = {5, 5};
    Submit(i, submit);
  }
  Deliver();
  Pass(absl::Seconds(2));
  const GroupStatus status = x_.state->Status()[0];
  EXPECT_EQ(status.sent_bytes, 264u);
  EXPECT_EQ(status.sent_kept_bytes, 200u);
  EXPECT_EQ(status.sent_dense_bytes, 800u);
  const protocol::StepReport* report = nullptr;
  for (const protocol::AgentMessage& message : x_.to_coordinator) {
    if (const auto* told = std::get_if<protocol::StepReport>(&message)) {
      report = told;
    }
  }
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->sent_bytes, 264u);
  EXPECT_EQ(report->sent_kept_bytes, 200u);
  EXPECT_EQ(report->sent_dense_bytes, 800u);
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

// By that an agent makes its connections anew between steps.
TEST_F(Pair, AStepIsOpenOnceAnybodyBeganItAndLastWordsAreWaitedFor) {
  Begin();
  EXPECT_EQ(x_.state->OpenAttempt(now_), 0);
  Submit(1, OneBucket(10, 50));
  Deliver();
  EXPECT_EQ(y_.state->OpenAttempt(now_), 1);
  EXPECT_EQ(x_.state->OpenAttempt(now_), 1);
  Submit(0, OneBucket(10, 50));
  Deliver();
  EXPECT_EQ(y_.state->OpenAttempt(now_), 0);
  EXPECT_EQ(x_.state->OpenAttempt(now_), 0);
  Give(x_, TrainerGone{1, "was killed"});
  Pass(absl::Milliseconds(500));
  EXPECT_EQ(x_.state->OpenAttempt(now_), protocol::kMaxAttempts);
  Pass(absl::Seconds(2));
  EXPECT_EQ(x_.state->OpenAttempt(now_), 0);
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

double SquaresOfDifference(const uint8_t* values, const uint8_t* others,
                           uint64_t elements) {
  double sum = 0;
  for (uint64_t i = 0; i < elements; ++i) {
    float value, other;
    std::memcpy(&value, values + 4 * i, 4);
    std::memcpy(&other, others + 4 * i, 4);
    sum += (double{value} - other) * (double{value} - other);
  }
  return sum;
}

double SquaresOf(const uint8_t* values, uint64_t elements) {
  const std::vector<uint8_t> zeros(4 * elements);
  return SquaresOfDifference(values, zeros.data(), elements);
}

// One node has a gradient and the other zeros, which every codec writes
// exactly: so the result is what the one has encoded, and its error is known.
class MeasuredPair : public Pair {
 protected:
  void MeasureStepOf(int speaker) {
    generation_.base_step = 16;
    generation_.lineage = {{5, 5}, 0};
    generation_.decision.mode = protocol::Mode::kTernary;
    generation_.decision.codec = protocol::Codec::kLevels3;
    Begin();
    wire::Submit submit = OneBucket(16, 50);
    submit.mode = 3;
    // The last element is beyond what is not clipped.
    Submit(speaker, submit, kLast);
    Give(*nodes_[1 - speaker], TrainerMessage{1, submit});
    Deliver();
    Pass(absl::Seconds(2));
    ExpectNoise(*nodes_[speaker]);
    ExpectNoise(*nodes_[1 - speaker]);
  }

  void ExpectNoise(const Node& node) {
    std::vector<protocol::StepReport::Noise> samples;
    for (const protocol::AgentMessage& message : node.to_coordinator) {
      const auto* report = std::get_if<protocol::StepReport>(&message);
      if (report == nullptr) continue;
      samples.insert(samples.end(), report->noise.begin(), report->noise.end());
    }
    ASSERT_EQ(samples.size(), 1);
    const protocol::StepReport::Noise& noise = samples[0];
    EXPECT_EQ(noise.step, 16u);
    EXPECT_EQ(noise.decision_version, 1u);
    // One trainer in each site: what it has is what its site encodes.
    const double squares = SquaresOf(node.slot, 50);
    EXPECT_EQ(noise.local, squares);
    EXPECT_EQ(noise.site, squares);
    EXPECT_NEAR(noise.encoded, squares, 1e-6 * squares);
    // Of two sites that swap the first counts the total.
    EXPECT_DOUBLE_EQ(noise.total,
                     &node == &x_ ? SquaresOf(node.result, 50) : 0);
    if (squares == 0) {
      EXPECT_EQ(noise.error, 0);
      EXPECT_EQ(noise.clip, 0);
      return;
    }
    const double error = SquaresOfDifference(node.result, node.slot, 50);
    EXPECT_NEAR(noise.error, error, 1e-6 * error);
    // The scale is a bfloat16, so up to 0.8 % above 2.5 times the mean square's
    // root.
    const double clip = std::pow(kLast - 2.5 * std::sqrt(squares / 50), 2);
    EXPECT_LE(noise.clip, clip * 1.0001);
    EXPECT_GT(noise.clip, clip * 0.98);
  }

  static constexpr float kLast = 1000;
};

TEST_F(MeasuredPair, AMeasuredStepIsReportedOnceInSquaresOfWhatTravelled) {
  MeasureStepOf(0);
}

TEST_F(MeasuredPair, TheOtherSiteReportsItsOwn) { MeasureStepOf(1); }

TEST_F(Pair, AVoteTellsWhenItsMasksChangedLastAndWhatMoved) {
  Begin();
  const auto vote = [&](uint64_t mask, uint32_t unchanged,
                        const std::string& moved) {
    auto vote = MakeMessage<wire::Vote>(wire::Kind::kVote);
    vote.mask_digest = {mask, 1};
    vote.steps_unchanged = unchanged;
    vote.elements = 100;
    SetText(moved, vote.moved);
    Give(x_, TrainerMessage{1, vote});
    return x_.Local().votes.at(0);
  };
  EXPECT_FALSE(vote(5, 1, "").changed_step.has_value());
  EXPECT_FALSE(vote(5, 2, "").changed_step.has_value());
  EXPECT_EQ(vote(6, 0, "fc 12").changed_step, 10);
  for (int i = 0; i < 2; ++i) Submit(i, OneBucket(10, 50));
  Deliver();
  const protocol::MaskVote same = vote(6, 1, "");
  EXPECT_EQ(same.changed_step, 10);
  EXPECT_EQ(same.moved, "fc 12");
  const protocol::MaskVote back = vote(6, 0, "");  // It moved there and back.
  EXPECT_EQ(back.changed_step, 11);
  EXPECT_EQ(back.moved, "");
}

TEST_F(Pair, WhatEachParameterKeepsIsReportedOnceOnEachStream) {
  Begin();
  const protocol::KeepByParameter keep = {
      {5, 5}, {{"fc.weight", 12, 40}}, 0, 0, 0};
  Give(x_, TrainerMessage{1, keep});
  const auto times_told = [&] {
    int times = 0;
    for (const protocol::AgentMessage& message : x_.to_coordinator) {
      const auto* report = std::get_if<protocol::StepReport>(&message);
      if (report == nullptr || !report->keep_by_parameter) continue;
      EXPECT_EQ(*report->keep_by_parameter, keep);
      ++times;
    }
    return times;
  };
  for (int i = 0; i < 3; ++i) Pass(absl::Seconds(1));
  EXPECT_EQ(times_told(), 1);
  Give(x_, CoordinatorConnected{});
  for (int i = 0; i < 3; ++i) Pass(absl::Seconds(1));
  EXPECT_EQ(times_told(), 2);
}

TEST_F(Pair, TheDevicePathIsReported) {
  Begin();
  const auto last = [&] {
    Pass(absl::Seconds(1));
    std::optional<protocol::DevicePath> path;
    for (const protocol::AgentMessage& message : x_.to_coordinator) {
      const auto* report = std::get_if<protocol::StepReport>(&message);
      if (report != nullptr) path = report->device_path;
    }
    return path;
  };
  EXPECT_EQ(last(), std::nullopt);
  auto path = MakeMessage<wire::DevicePath>(wire::Kind::kDevicePath);
  path.path = 1;
  SetText("no driver", path.reason);
  Give(x_, TrainerMessage{1, path});
  EXPECT_EQ(last(), (protocol::DevicePath{"torch", "no driver"}));
}

TEST_F(Pair, TheFirstCompactedStepIsReported) {
  generation_.decision.mode = protocol::Mode::kCompacted;
  generation_.decision.mask_digest = {4, 4};
  generation_.decision.layout_digest = {5, 5};
  Begin();
  const auto step = [&](uint64_t step, bool compacted) {
    wire::Submit submit = OneBucket(step, 50);
    if (compacted) {
      submit.mode = 2;
      submit.mask_digest = {4, 4};
    }
    for (int i = 0; i < 2; ++i) Submit(i, submit);
    Deliver();
    return std::get<protocol::StepReport>(x_.to_coordinator.back());
  };
  EXPECT_FALSE(step(10, false).first_compacted_step.has_value());
  EXPECT_EQ(step(11, true).first_compacted_step, 11);
  EXPECT_EQ(step(12, true).first_compacted_step, 11);
}

TEST_F(Pair, LevelsArePackedWhereTheSlowestLinkIsFast) {
  generation_.decision.mode = protocol::Mode::kTernary;
  generation_.decision.codec = protocol::Codec::kLevels7;
  Begin();
  // What both send in a step; the rate holds from the next one on.
  const auto bytes_of_step = [&](uint64_t step, double slowest_link) {
    wire::Submit submit = OneBucket(step, 1000);
    submit.mode = 3;
    for (Node* node : nodes_) {
      for (uint64_t i = 0; i < submit.elements; ++i) {
        const float value = i % 16 == 0 ? 1 : 0.01f;
        std::memcpy(node->slot + 4 * i, &value, 4);
      }
      Give(*node, TrainerMessage{1, submit});
    }
    size_t bytes = 0;
    for (const auto& [node, event] : queue_) {
      const auto* data = std::get_if<PeerData>(&event);
      if (data != nullptr) bytes += data->payload.bytes.size();
    }
    for (Node* node : nodes_) Give(*node, Tick{slowest_link});
    Deliver();
    return bytes;
  };
  const size_t unknown = bytes_of_step(10, 100e6);
  const size_t fast = bytes_of_step(11, 10e6);
  const size_t slow = bytes_of_step(12, 10e6);
  EXPECT_LT(unknown, 0.8 * static_cast<double>(fast));
  EXPECT_LT(slow, 0.8 * static_cast<double>(fast));
  for (Node* node : nodes_) {
    ASSERT_NE(node->Last<wire::Committed>(), nullptr);
    EXPECT_EQ(node->Last<wire::Committed>()->step, 12u);
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

class Uplink : public Pair {
 protected:
  // By peer of x, of which z is of its own site.
  std::map<std::string, bool> Shares(std::vector<protocol::Plan::Tree> trees) {
    generation_.plan.swap = false;
    generation_.plan.trees = std::move(trees);
    protocol::Member z = generation_.members[0];
    z.agent = "z";
    z.ranks = {2};
    z.attach_ids = {{3, 1}};
    generation_.members.insert(generation_.members.begin() + 1, z);
    generation_.world_size = 3;
    Begin(false);
    std::map<std::string, bool> shares;
    for (const auto& peer : x_.peers) shares[peer.agent] = peer.shares_uplink;
    return shares;
  }
  const std::map<std::string, bool> kNone = {{"y", false}, {"z", false}};
};

TEST_F(Uplink, IsSharedByOtherSitesThatAreRootsInTurn) {
  const std::map<std::string, bool> other_site = {{"y", true}, {"z", false}};
  EXPECT_EQ(Shares({{{0, 0}}, {{1, 1}}}), other_site);
}

TEST_F(Uplink, OfATreeEachSiteHasLinksOfItsOwn) {
  EXPECT_EQ(Shares({{{1, 1}}}), kNone);
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
  EXPECT_THAT(
      y_.Last<wire::Failed>()->text,
      AllOf(HasSubstr("rank 0 at agent x (site a) ended in order before the "
                      "first step: unequal numbers of batches?"),
            HasSubstr("Give all ranks equally many batches"),
            Not(HasSubstr("checkpoint"))));
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
