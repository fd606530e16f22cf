// Trainers that leave, are lost and attach again: what they and the coordinator
// are told.
#include <string>
#include <variant>
#include <vector>

#include "agent/core/agent_state.h"
#include "agent/core/test_pair.h"
#include "base/status_matchers.h"

namespace pactrain::agent {
namespace {

using protocol::Digest;

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
  return node.Local().left;
}

TEST_F(RejoinTest, TheCoordinatorHearsWhetherOneThatMayRejoinLives) {
  FailedAfterLoss(protocol::OnShrink::kContinue);
  EXPECT_FALSE(x_.closed);
  ASSERT_EQ(LeftOf(x_).size(), 1u);
  EXPECT_TRUE(LeftOf(x_)[0].may_return);
  const protocol::LocalTrainers before = x_.Local();
  x_.to_coordinator.clear();
  Give(x_, CoordinatorConnected{});  // Another one.
  EXPECT_EQ(x_.Local(), before);
  Give(x_, TrainerGone{1, "was killed by signal 9"});
  ASSERT_EQ(LeftOf(x_).size(), 1u);
  EXPECT_FALSE(LeftOf(x_)[0].may_return);
  EXPECT_EQ(LeftOf(x_)[0].reason, "was killed by signal 9");
  EXPECT_EQ(LeftOf(x_)[0].attach_id, before.left[0].attach_id);
  EXPECT_GT(x_.Local().revision, before.revision);
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
  ASSERT_EQ(x_.Local().here.size(), 1u);
  EXPECT_EQ(x_.Local().here[0].trainer.attach_id, (Digest{9, 9}));
  Deliver();
  ASSERT_NE(y_.Last<wire::Failed>(), nullptr);
  EXPECT_EQ(y_.Last<wire::Failed>()->may_rejoin, 1);
}

TEST_F(RejoinTest, ATrainerIsToldItsSeatsSecretAndItsProofIsSaid) {
  generation_.on_shrink = protocol::OnShrink::kPause;
  seats_ = {KeyOf(8)};
  Begin();
  ASSERT_NE(x_.Last<wire::Attached>(), nullptr);
  for (const uint8_t byte : x_.Last<wire::Attached>()->seat) {
    EXPECT_EQ(byte, 8);
  }
  wire::Hello again = MakeHello(0);
  again.attach_id = {1, 9};
  again.last_attach_id = MakeHello(0).attach_id;
  Give(x_, TrainerHello{2,
                        again,
                        {absl::MakeConstSpan(x_.slot, kBytes),
                         absl::MakeSpan(x_.result, kBytes)},
                        KeyOf(6)});
  ASSERT_EQ(x_.Local().here.size(), 1u);
  EXPECT_TRUE(x_.Local().here[0].trainer.proof == KeyOf(6));
}

TEST_F(RejoinTest, OneThatMayRejoinCanLeaveForGood) {
  FailedAfterLoss(protocol::OnShrink::kPause);
  Give(x_, TrainerMessage{1, MakeMessage<wire::Detach>(wire::Kind::kDetach)});
  EXPECT_TRUE(x_.closed);
  EXPECT_EQ(LeftOf(x_).back().reason, "detached");
  EXPECT_FALSE(LeftOf(x_).back().may_return);
}

TEST_F(RejoinTest, HowFarARunningGenerationHasComeIsSaidFirstOnEveryStream) {
  Begin();
  x_.to_coordinator.clear();
  Give(x_, CoordinatorConnected{});
  ASSERT_FALSE(x_.to_coordinator.empty());
  const auto* report = std::get_if<protocol::StepReport>(&x_.to_coordinator[0]);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->generation, generation_.number);
}

// Others would wait for somebody to take the place of one that detached.
TEST_F(RejoinTest, WhoDetachedIsSaidAgainOnEveryStream) {
  generation_.on_shrink = protocol::OnShrink::kPause;
  Begin();
  Give(x_, CoordinatorDisconnected{"the connection broke"});
  Give(x_, TrainerMessage{1, MakeMessage<wire::Detach>(wire::Kind::kDetach)});
  EXPECT_TRUE(LeftOf(x_).empty());
  for (size_t streams : {1, 2}) {
    x_.to_coordinator.clear();
    Give(x_, CoordinatorConnected{});
    ASSERT_EQ(LeftOf(x_).size(), 1u) << streams;
    EXPECT_EQ(LeftOf(x_)[0].reason, "detached");
    EXPECT_FALSE(LeftOf(x_)[0].may_return);
    EXPECT_EQ(LeftOf(x_)[0].attach_id, generation_.members[0].attach_ids[0]);
    // And how far it had come.
    ASSERT_TRUE(x_.Local().report);
    EXPECT_EQ(x_.Local().report->generation, generation_.number);
  }
}

TEST_F(RejoinTest, WhoDetachedIsForgottenWithTheNextGeneration) {
  FailedAfterLoss(protocol::OnShrink::kPause);
  Give(x_, TrainerMessage{1, MakeMessage<wire::Detach>(wire::Kind::kDetach)});
  ++generation_.number;
  generation_.members[0].attach_ids = {{9, 9}};
  Give(x_, protocol::CoordinatorMessage(
               protocol::StartGeneration{generation_, KeyOf(3)}));
  ASSERT_EQ(LeftOf(x_).size(), 1u);
  EXPECT_EQ(LeftOf(x_)[0].attach_id, (Digest{9, 9}));
  EXPECT_FALSE(x_.Local().report);
}

// All that the coordinator is told of trainers is in one message, and grows no
// revision when it is only said again.
TEST_F(RejoinTest, AllTrainersAreSaidWholeOnEveryStream) {
  Begin();
  auto vote = MakeMessage<wire::Vote>(wire::Kind::kVote);
  vote.mask_digest = {5, 1};
  vote.elements = 100;
  Give(x_, TrainerMessage{1, vote});
  const protocol::LocalTrainers local = x_.Local();
  ASSERT_EQ(local.here.size(), 1u);
  EXPECT_EQ(local.here[0].generation, generation_.number);
  ASSERT_EQ(local.votes.size(), 1u);
  EXPECT_EQ(local.votes[0].mask_digest, (Digest{5, 1}));
  x_.to_coordinator.clear();
  Give(x_, CoordinatorDisconnected{"the connection broke"});
  Give(x_, TrainerMessage{1, vote});  // Nothing new.
  Give(x_, CoordinatorConnected{});
  EXPECT_EQ(x_.Local(), local);
}

TEST_F(RejoinTest, AVoteOfOneThatLeftIsNotSaidAnyMore) {
  generation_.on_shrink = protocol::OnShrink::kPause;
  Begin();
  auto vote = MakeMessage<wire::Vote>(wire::Kind::kVote);
  vote.elements = 100;
  Give(x_, TrainerMessage{1, vote});
  Give(x_, CoordinatorDisconnected{"the connection broke"});
  Give(x_, TrainerGone{1, "was killed by signal 9"});
  Give(x_, CoordinatorConnected{});
  EXPECT_TRUE(x_.Local().here.empty());
  EXPECT_TRUE(x_.Local().votes.empty());
  ASSERT_EQ(LeftOf(x_).size(), 1u);
  EXPECT_EQ(LeftOf(x_)[0].reason, "was killed by signal 9");
}

TEST_F(RejoinTest, WhomItNeverReachedTheCoordinatorHears) {
  generation_.on_shrink = protocol::OnShrink::kContinue;
  Begin(/*connected=*/false);
  Submit(0, OneBucket(10, 50));
  Pass(OptionsOf("x", "a").stall_timeout() + absl::Seconds(1));
  ASSERT_EQ(LeftOf(x_).size(), 1u);
  EXPECT_TRUE(LeftOf(x_)[0].generation_ended);
  EXPECT_EQ(LeftOf(x_)[0].unreached, std::vector<std::string>{"y"});
}

TEST_F(RejoinTest, WhomItLostItDidReach) {
  generation_.on_shrink = protocol::OnShrink::kContinue;
  Begin();
  Submit(0, OneBucket(10, 50));
  Give(x_, PeerDisconnected{"y", false, "reset"});
  Pass(absl::Minutes(2));
  ASSERT_EQ(LeftOf(x_).size(), 1u);
  EXPECT_TRUE(LeftOf(x_)[0].generation_ended);
  EXPECT_TRUE(LeftOf(x_)[0].unreached.empty());
}

TEST_F(RejoinTest, WhatTheCoordinatorEndsIsOverForTheTrainers) {
  generation_.on_shrink = protocol::OnShrink::kContinue;
  Begin();
  Give(x_, protocol::CoordinatorMessage(protocol::EndGeneration{
               generation_.group, generation_.number, "run-2 joins"}));
  ASSERT_NE(x_.Last<wire::Failed>(), nullptr);
  EXPECT_EQ(x_.Last<wire::Failed>()->final, 1);
  EXPECT_EQ(x_.Last<wire::Failed>()->may_rejoin, 1);
}

TEST_F(RejoinTest, WhoOfAFormerProcessIsDeadIsSaidOnEveryStream) {
  const FormerTrainerLeft dead = {{"job", 0}, 3, {9, 8}, "ended (process 17)"};
  Give(x_, dead);
  EXPECT_TRUE(LeftOf(x_).empty());
  for (size_t streams : {1, 2}) {
    x_.to_coordinator.clear();
    Give(x_, CoordinatorConnected{});
    ASSERT_EQ(LeftOf(x_).size(), 1u) << streams;
    EXPECT_EQ(LeftOf(x_)[0].attach_id, dead.attach_id);
    EXPECT_EQ(LeftOf(x_)[0].reason, dead.reason);
    EXPECT_FALSE(LeftOf(x_)[0].may_return);
  }
  Give(x_, FormerTrainerLeft{{"job", 0}, 2, {7, 8}, "ended (process 18)"});
  EXPECT_EQ(LeftOf(x_).size(), 2u);
  // Unless it attaches again.
  wire::Hello hello = MakeHello(0);
  hello.attach_id = {dead.attach_id.hi, 99};
  Give(x_, TrainerHello{1,
                        hello,
                        {absl::MakeConstSpan(x_.slot, x_.bytes),
                         absl::MakeSpan(x_.result, x_.bytes)}});
  x_.to_coordinator.clear();
  Give(x_, CoordinatorConnected{});
  ASSERT_EQ(LeftOf(x_).size(), 1u);
  EXPECT_EQ(LeftOf(x_)[0].rank, 2u);
}

// D8: a number that was used before, of another history.
TEST_F(RejoinTest, AnotherGenerationOfAnOldNumberIsRefusedInWords) {
  Begin();
  Give(x_, protocol::CoordinatorMessage(protocol::EndGeneration{
               generation_.group, generation_.number, "over"}));
  generation_.term = 7;
  for (const uint64_t number : {uint64_t{2}, uint64_t{3}}) {
    const uint64_t id = 10 + number;
    wire::Hello hello = MakeHello(0);
    hello.attach_id = {id, 1};
    generation_.number = number;
    generation_.members[0].attach_ids = {{id, 1}};
    Give(x_, TrainerHello{id,
                          hello,
                          {absl::MakeConstSpan(x_.slot, x_.bytes),
                           absl::MakeSpan(x_.result, x_.bytes)}});
    x_.told.clear();
    x_.to_coordinator.clear();
    x_.closed = false;
    Give(x_, protocol::CoordinatorMessage(
                 protocol::StartGeneration{generation_, KeyOf(4)}));
    ASSERT_NE(x_.Last<wire::Failed>(), nullptr) << number;
    EXPECT_THAT(std::string(x_.Last<wire::Failed>()->text),
                testing::HasSubstr("knows another generation 3 of it: its "
                                   "state directory seems to be an older"));
    EXPECT_TRUE(x_.closed);
    EXPECT_EQ(LeftOf(x_).back().attach_id, (Digest{id, 1}));
  }
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

}  // namespace
}  // namespace pactrain::agent
