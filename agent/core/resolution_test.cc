// How an attempt ends where a member did not hear the others: certificates,
// what is told of an open vote, and the retry of results that differ.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "agent/core/agent_state.h"
#include "agent/core/test_pair.h"

namespace pactrain::agent {
namespace {

using protocol::Certificate;
using protocol::CommitVote;

class ResolutionTest : public Pair {
 protected:
  // Delivers all but the votes to `deaf`.
  void DeliverWithoutVotesTo(const std::vector<Node*>& deaf) {
    while (!queue_.empty()) {
      auto [node, event] = queue_.front();
      queue_.pop_front();
      const auto* control = std::get_if<PeerControl>(&event);
      const bool is_vote =
          control != nullptr &&
          std::holds_alternative<CommitVote>(control->control.body);
      const bool is_deaf =
          std::find(deaf.begin(), deaf.end(), node) != deaf.end();
      if (!is_vote || !is_deaf) Give(*node, event);
    }
  }
  // Both have voted; x has committed step 10, y has not heard x's vote.
  void CommitAtXAlone() {
    Begin();
    for (int n = 0; n < 2; ++n) Submit(n, OneBucket(10, 50));
    DeliverWithoutVotesTo({&y_});
    ASSERT_NE(x_.Last<wire::Committed>(), nullptr);
    ASSERT_EQ(y_.Last<wire::Committed>(), nullptr);
  }
  // As Pass(), but what lies on the way is looked at first.
  template <typename Look>
  void PassAndLook(absl::Duration time, Look look) {
    const absl::Duration end = now_ + time;
    while (now_ < end) {
      now_ += absl::Milliseconds(100);
      for (Node* node : nodes_) Give(*node, Tick{});
      while (!queue_.empty()) {
        auto [node, event] = queue_.front();
        queue_.pop_front();
        look(event);
        Give(*node, event);
      }
    }
  }
};

TEST_F(ResolutionTest, OneThatHasMovedOnAnswersWithItsCertificate) {
  CommitAtXAlone();
  Pass(absl::Seconds(10));
  const auto* committed = y_.Last<wire::Committed>();
  ASSERT_NE(committed, nullptr);
  EXPECT_EQ(committed->step, 10u);
}

TEST_F(ResolutionTest, ACertificateOfAnotherResultIsNotTaken) {
  CommitAtXAlone();
  size_t seen = 0;
  PassAndLook(absl::Seconds(10), [&](Event& event) {
    auto* control = std::get_if<PeerControl>(&event);
    if (control == nullptr) return;
    auto* certificate = std::get_if<Certificate>(&control->control.body);
    if (certificate == nullptr) return;
    ++seen;
    certificate->result.lo ^= 1;
  });
  EXPECT_GT(seen, 0u);
  EXPECT_EQ(y_.Last<wire::Committed>(), nullptr);
}

// The others may have committed it, so its number is never used again.
TEST_F(ResolutionTest, AnOpenVoteIsReportedAsACommit) {
  Begin();
  for (int n = 0; n < 2; ++n) Submit(n, OneBucket(10, 50));
  DeliverWithoutVotesTo({&x_, &y_});
  Give(y_, CoordinatorConnected{});  // A new stream: all is said again.
  const protocol::StepReport* report = nullptr;
  for (const auto& message : y_.to_coordinator) {
    const auto* said = std::get_if<protocol::StepReport>(&message);
    if (said != nullptr) report = said;
  }
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(y_.Last<wire::Committed>(), nullptr);
  EXPECT_EQ(report->committed_step, 10u);
  EXPECT_EQ(report->committed_count, 1u);
}

// A sum that bf16 cannot hold comes out right.
TEST_F(ResolutionTest, ResultsThatDifferAreTriedAgainExactly) {
  generation_.decision.codec = protocol::Codec::kBf16;
  Begin();
  constexpr uint64_t kElements = 600;
  for (int n = 0; n < 2; ++n) Submit(n, OneBucket(10, kElements));
  bool damaged = false;
  for (auto& [node, event] : queue_) {
    auto* frame = std::get_if<PeerData>(&event);
    if (frame == nullptr || std::exchange(damaged, true)) continue;
    const auto wrong = std::make_shared<std::vector<uint8_t>>(
        frame->payload.bytes.begin(), frame->payload.bytes.end());
    wrong->at(6) ^= 1;
    frame->payload = {wrong, absl::MakeConstSpan(*wrong)};
  }
  ASSERT_TRUE(damaged);
  Deliver();
  for (Node* node : nodes_) {
    const auto* committed = node->Last<wire::Committed>();
    ASSERT_NE(committed, nullptr);
    EXPECT_EQ(committed->attempt, 2u);
    for (uint64_t i = 0; i < kElements; ++i) {
      float value;
      std::memcpy(&value, node->result + 4 * i, 4);
      ASSERT_EQ(value, static_cast<float>(3 * i)) << node->name;
    }
  }
}

// A vote of an attempt that failed comes late, and its result is the same.
TEST_F(ResolutionTest, AVoteOfAnEarlierAttemptDoesNotCount) {
  Begin();
  for (int n = 0; n < 2; ++n) Submit(n, OneBucket(10, 50));
  std::vector<CommitVote> votes;  // Of y.
  const auto deliver = [&] {      // But for those.
    while (!queue_.empty()) {
      auto [node, event] = queue_.front();
      queue_.pop_front();
      const auto* control = std::get_if<PeerControl>(&event);
      const CommitVote* vote =
          control == nullptr || node == &y_
              ? nullptr
              : std::get_if<CommitVote>(&control->control.body);
      // The first data are lost with the connection.
      const bool lost = node == &x_ && votes.empty() &&
                        std::holds_alternative<PeerData>(event);
      if (vote != nullptr) votes.push_back(*vote);
      if (vote == nullptr && !lost) Give(*node, event);
    }
  };
  deliver();
  ASSERT_EQ(votes.size(), 1u);
  Give(x_, PeerDisconnected{"y", false, "it broke"});
  Give(y_, PeerDisconnected{"x", false, "it broke"});
  Give(x_, PeerConnected{"y"});
  Give(y_, PeerConnected{"x"});
  deliver();
  ASSERT_EQ(votes.back().attempt, 2);
  ASSERT_EQ(votes.back().result, votes.front().result);
  Give(x_, PeerControl{"y", {generation_.group, votes.front()}});
  EXPECT_EQ(x_.Last<wire::Committed>(), nullptr);
  Give(x_, PeerControl{"y", {generation_.group, votes.back()}});
  ASSERT_NE(x_.Last<wire::Committed>(), nullptr);
  EXPECT_EQ(x_.Last<wire::Committed>()->attempt, 2);
}

// By the other's refusal nobody has committed it.
TEST_F(ResolutionTest, AVoteThatCameToNothingIsNoCommit) {
  Begin();
  for (int n = 0; n < 2; ++n) Submit(n, OneBucket(10, 50));
  std::vector<std::pair<Node*, Event>> to_x;
  while (!queue_.empty()) {
    auto [node, event] = queue_.front();
    queue_.pop_front();
    if (node == &y_) Give(*node, event);
  }
  Give(x_, TrainerGone{1, "was killed by signal 9"});
  Deliver();
  ASSERT_NE(y_.Last<wire::Failed>(), nullptr);
  EXPECT_EQ(y_.Last<wire::Failed>()->code, wire::Code::kStepNotApplied);
  for (const bool again : {false, true}) {
    if (again) Give(y_, CoordinatorConnected{});
    const protocol::StepReport* report = nullptr;
    for (const auto& message : y_.to_coordinator) {
      const auto* said = std::get_if<protocol::StepReport>(&message);
      if (said != nullptr) report = said;
    }
    ASSERT_NE(report, nullptr);
    EXPECT_EQ(report->committed_count, 0u);
  }
}

}  // namespace
}  // namespace pactrain::agent
