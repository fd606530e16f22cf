// Trainers of several launches share an agent: a trainer's memory is not
// touched once it is gone.
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "agent/core/agent_state.h"
#include "agent/core/test_pair.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

constexpr uint64_t kElements = 50;

// Agent x has ranks 0 and 1, of two launches and so with two regions; agent y
// has rank 2.
class LostMemory : public testing::Test {
 protected:
  LostMemory() {
    generation_.group = {"job", 0};
    generation_.number = 3;
    generation_.lineage.id = {8, 8};
    generation_.world_size = 3;
    generation_.base_step = 10;
    generation_.launch = "run-1";
    generation_.sites = {"a", "b"};
    generation_.plan.swap = true;
    generation_.decision.version = 1;
    generation_.on_shrink = protocol::OnShrink::kContinue;
    AddMember("x", "a", {0, 1});
    AddMember("y", "b", {2});
    for (AgentState* agent : {x_.get(), y_.get()}) {
      Give(*agent, CoordinatorConnected{});
    }
    for (uint32_t rank = 0; rank < 3; ++rank) Attach(rank);
    for (AgentState* agent : {x_.get(), y_.get()}) {
      Give(*agent, protocol::CoordinatorMessage(
                       protocol::StartGeneration{generation_, KeyOf(3)}));
    }
    Give(*x_, PeerConnected{"y"});
    Give(*y_, PeerConnected{"x"});
    Deliver();
  }

  AgentState& AgentOf(uint32_t rank) { return rank == 2 ? *y_ : *x_; }

  void Submit(uint32_t rank) {
    auto submit = MakeMessage<wire::Submit>(wire::Kind::kSubmit);
    submit.step = 10;
    submit.attempt = 1;
    submit.elements = submit.filled = kElements;
    submit.bucket_layout = {kElements, 1};
    submit.decision_version = 1;
    submit.mode = submit.op = submit.dtype = submit.last = 1;
    for (uint64_t i = 0; i < kElements; ++i) {
      const auto value = static_cast<float>(i * (rank + 1));
      std::memcpy(slot_[rank]->data() + 4 * i, &value, 4);
    }
    Give(AgentOf(rank), TrainerMessage{rank + 1, submit});
  }

  // All that is on its way arrives, but for commit votes for x.
  void DeliverHoldingVotes() {
    hold_votes_ = true;
    Deliver();
    hold_votes_ = false;
  }
  void Deliver() {
    while (!queue_.empty()) {
      auto [agent, event] = queue_.front();
      queue_.pop_front();
      const auto* control = std::get_if<PeerControl>(&event);
      if (hold_votes_ && agent == x_.get() && control != nullptr &&
          std::holds_alternative<protocol::CommitVote>(control->control.body)) {
        held_.push_back({agent, event});
      } else {
        Give(*agent, event);
      }
    }
  }

  // The process is dead: what it had is unmapped when that has been handled.
  void Kill(uint32_t rank) {
    Give(AgentOf(rank), TrainerGone{rank + 1, "was killed by signal 9"});
    slot_[rank].reset();
    result_[rank].reset();
  }

  bool IsCommitted(uint32_t rank) const { return committed_[rank]; }
  float Result(uint32_t rank, uint64_t element) {
    float value;
    std::memcpy(&value, result_[rank]->data() + 4 * element, 4);
    return value;
  }

  std::deque<std::pair<AgentState*, Event>> queue_, held_;

 private:
  void AddMember(const std::string& name, const std::string& site,
                 const std::vector<uint32_t>& ranks) {
    protocol::Member member;
    member.agent = name;
    member.incarnation = {7, 7};
    member.site = site;
    member.data_address = "127.0.0.1:1";
    member.ranks = ranks;
    for (uint32_t rank : ranks) member.attach_ids.push_back({rank + 1, 1});
    generation_.members.push_back(member);
  }

  void Attach(uint32_t rank) {
    wire::Hello hello = MakeHello(rank, 3);
    if (rank == 1) SetText("run-2", hello.launch);
    Give(AgentOf(rank),
         TrainerHello{rank + 1,
                      hello,
                      {absl::MakeConstSpan(slot_[rank]->data(), kBytes),
                       absl::MakeSpan(result_[rank]->data(), kBytes)}});
  }

  void Give(AgentState& agent, const Event& event) {
    const bool is_x = &agent == x_.get();
    AgentState* const other = is_x ? y_.get() : x_.get();
    for (const Effect& effect : agent.Handle(event, absl::Seconds(100))) {
      if (const auto* control = std::get_if<SendPeerControl>(&effect)) {
        queue_.push_back(
            {other, PeerControl{is_x ? "x" : "y", control->control}});
      } else if (const auto* data = std::get_if<SendPeerData>(&effect)) {
        queue_.push_back(
            {other, PeerData{is_x ? "x" : "y", data->header, data->payload}});
      } else if (const auto* send = std::get_if<SendTrainer>(&effect)) {
        if (std::holds_alternative<wire::Committed>(send->message)) {
          committed_[send->trainer - 1] = true;
        }
      }
    }
  }

  protocol::Generation generation_;
  std::unique_ptr<Memory> slot_[3] = {std::make_unique<Memory>(kBytes),
                                      std::make_unique<Memory>(kBytes),
                                      std::make_unique<Memory>(kBytes)};
  std::unique_ptr<Memory> result_[3] = {std::make_unique<Memory>(kBytes),
                                        std::make_unique<Memory>(kBytes),
                                        std::make_unique<Memory>(kBytes)};
  std::unique_ptr<AgentState> x_ = *AgentState::Create(OptionsOf("x", "a"));
  std::unique_ptr<AgentState> y_ = *AgentState::Create(OptionsOf("y", "b"));
  bool hold_votes_ = false;
  bool committed_[3] = {};
};

// Results were written to the region of rank 0, which dies alone in its launch
// while the vote is open.
TEST_F(LostMemory, ACommitAfterTheLowestRanksDeathGivesTheOthersTheResult) {
  for (uint32_t rank : {0, 1, 2}) Submit(rank);
  DeliverHoldingVotes();
  ASSERT_EQ(held_.size(), 1u);
  Kill(0);
  queue_.push_front(held_.front());  // The vote of y.
  Deliver();
  ASSERT_TRUE(IsCommitted(1));
  for (uint64_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(Result(1, i), static_cast<float>(i * 6)) << "element " << i;
  }
}

TEST_F(LostMemory, WithoutItsLaunchesOnlyTrainerTheVoteIsStillResolved) {
  for (uint32_t rank : {0, 1, 2}) Submit(rank);
  DeliverHoldingVotes();
  ASSERT_EQ(held_.size(), 1u);
  Kill(1);
  queue_.push_front(held_.front());
  Deliver();
  EXPECT_TRUE(IsCommitted(0));
  EXPECT_EQ(Result(0, 1), 6);
}

TEST_F(LostMemory, WhereAllTrainersOfTheNodeDieNothingIsTouched) {
  for (uint32_t rank : {0, 1, 2}) Submit(rank);
  DeliverHoldingVotes();
  ASSERT_EQ(held_.size(), 1u);
  Kill(0);
  Kill(1);
  queue_.push_front(held_.front());
  Deliver();
  EXPECT_TRUE(IsCommitted(2));
}

}  // namespace
}  // namespace pactrain::agent
