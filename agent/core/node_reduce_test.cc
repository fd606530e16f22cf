// One agent whose two trainers have a GPU each: what it makes of buckets that
// they have reduced.
#include <cstring>
#include <string>
#include <vector>

#include "agent/core/agent_state.h"
#include "agent/core/test_pair.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kElements = 4;
constexpr absl::Duration kNow = absl::Seconds(100);

class NodeReduceTest : public testing::Test {
 protected:
  NodeReduceTest() {
    protocol::Generation generation;
    generation.group = {"job", 0};
    generation.number = 3;
    generation.world_size = 2;
    generation.base_step = 10;
    generation.lineage = {{5, 5}, 0};
    generation.launch = "run-1";
    generation.sites = {"a"};
    generation.plan.trees = {{{0}}};
    generation.decision.version = 1;
    protocol::Member member;
    member.agent = "x";
    member.incarnation = {7, 7};
    member.site = "a";
    member.data_address = "127.0.0.1:1";
    member.ranks = {0, 1};
    member.attach_ids = {{1, 1}, {2, 1}};
    generation.members = {member};
    Give(CoordinatorConnected{});
    for (uint32_t rank : {0u, 1u}) {
      wire::Hello hello = MakeHello(rank);
      hello.nccl_version = 22907;
      SetText(absl::StrCat("GPU-", rank), hello.device);
      Give(TrainerHello{rank + 1,
                        hello,
                        {absl::MakeConstSpan(slots_[rank].data(), kBytes),
                         absl::MakeSpan(result_.data(), kBytes)}});
    }
    Give(protocol::CoordinatorMessage(
        protocol::StartGeneration{generation, KeyOf(3)}));
  }

  void Give(const Event& event) {
    for (const Effect& effect : agent_->Handle(event, kNow)) {
      const auto* send = std::get_if<SendTrainer>(&effect);
      if (send == nullptr) continue;
      told_[send->trainer - 1].push_back(std::visit(
          [](const auto& m) { return m.header.kind; }, send->message));
      if (const auto* failed = std::get_if<wire::Failed>(&send->message)) {
        failure_ = failed->text;
      }
    }
  }
  // What each trainer was told last.
  std::vector<wire::Kind> Last() const {
    return {told_[0].back(), told_[1].back()};
  }
  template <typename Message>
  static Message Make(wire::Kind kind) {
    auto message = MakeMessage<Message>(kind);
    message.epoch = 1;
    return message;
  }

  void Open() {
    Give(
        TrainerMessage{1, Make<wire::CollectiveId>(wire::Kind::kCollectiveId)});
    for (uint32_t rank : {0u, 1u}) {
      Give(TrainerMessage{rank + 1, Make<wire::Opened>(wire::Kind::kOpened)});
    }
  }
  void Stage(uint32_t rank) {
    auto staged = Make<wire::Staged>(wire::Kind::kStaged);
    staged.step = 10;
    staged.attempt = 1;
    staged.elements = kElements;
    staged.decision_version = 1;
    staged.dtype = 1;
    Give(TrainerMessage{rank + 1, staged});
  }
  void Reduce(uint32_t rank) {
    auto reduced = Make<wire::BucketWord>(wire::Kind::kReduced);
    reduced.step = 10;
    reduced.attempt = 1;
    Give(TrainerMessage{rank + 1, reduced});
  }
  void Submit(uint32_t rank, bool reduced) {
    auto submit = MakeMessage<wire::Submit>(wire::Kind::kSubmit);
    submit.step = 10;
    submit.attempt = 1;
    submit.elements = submit.filled = kElements;
    submit.decision_version = 1;
    submit.mode = submit.op = submit.dtype = submit.last = 1;
    submit.reduced = reduced;
    Give(TrainerMessage{rank + 1, submit});
  }
  void Fill(uint32_t rank, float value) {
    for (uint64_t i = 0; i < kElements; ++i) {
      std::memcpy(slots_[rank].data() + 4 * i, &value, 4);
    }
  }
  float Result() {
    float value = 0;
    std::memcpy(&value, result_.data(), 4);
    return value;
  }

  std::vector<Memory> slots_ = {Memory(kBytes), Memory(kBytes)};
  Memory result_{kBytes};
  std::unique_ptr<AgentState> agent_ = *AgentState::Create(OptionsOf("x", "a"));
  std::vector<wire::Kind> told_[2];
  std::string failure_;
};

TEST_F(NodeReduceTest, WhatAllHaveReducedIsCommittedFromTheLeadersSlot) {
  EXPECT_EQ(told_[0].back(), wire::Kind::kMakeId);
  Open();
  Stage(1);
  Stage(0);
  EXPECT_THAT(Last(), ElementsAre(wire::Kind::kGo, wire::Kind::kGo));
  Reduce(0);
  Reduce(1);
  EXPECT_THAT(Last(), ElementsAre(wire::Kind::kTaken, wire::Kind::kTaken));
  Fill(0, 7);
  Fill(1, 1000);  // Left from before.
  Submit(1, true);
  Submit(0, true);
  EXPECT_THAT(Last(),
              ElementsAre(wire::Kind::kCommitted, wire::Kind::kCommitted));
  EXPECT_EQ(Result(), 7);
  EXPECT_EQ(agent_->Status()[0].nccl.taken_buckets, 1u);
  EXPECT_TRUE(agent_->Status()[0].nccl_ready);
}

TEST_F(NodeReduceTest, AfterACloseTheAttemptGoesOnByTheHost) {
  Open();
  Stage(0);
  Stage(1);
  Reduce(0);
  Give(TrainerMessage{
      2, Make<wire::CollectiveFailed>(wire::Kind::kCollectiveFailed)});
  EXPECT_THAT(Last(), ElementsAre(wire::Kind::kClose, wire::Kind::kClose));
  Fill(0, 7);
  Fill(1, 1000);
  Submit(0, false);
  Submit(1, false);
  EXPECT_EQ(Result(), 1007);
  EXPECT_FALSE(agent_->Status()[0].nccl_ready);
}

TEST_F(NodeReduceTest, ASubmitThatIsNotAsItWasTakenBreaksTheProtocol) {
  Open();
  Submit(0, true);
  EXPECT_THAT(failure_, HasSubstr("rank 0"));
  EXPECT_EQ(told_[0].back(), wire::Kind::kFailed);
}

TEST_F(NodeReduceTest, AStagedBucketOfAPastStepGoesByTheHost) {
  Open();
  for (uint32_t rank : {0u, 1u}) Submit(rank, false);
  Stage(0);
  EXPECT_EQ(told_[0].back(), wire::Kind::kByHost);
}

}  // namespace
}  // namespace pactrain::agent
