// A link so slow in one direction that data reaches one agent for longer than
// attempts may stand still, while the other has all that it needs.
#include "agent/core/agent_state.h"
#include "agent/core/test_pair.h"

namespace pactrain::agent {
namespace {

constexpr uint64_t kFrames = 32;
constexpr uint64_t kElements = kFrames * protocol::kFrameElements;

class SlowLinkTest : public Pair {
 protected:
  SlowLinkTest() : Pair(4 * kElements) {
    generation_.plan.swap = false;
    generation_.plan.trees = {{{0, 0}}};  // All sums are made at x.
  }

  // All arrives at once, but data for y.
  void DeliverControl() {
    while (!queue_.empty()) {
      auto [node, event] = queue_.front();
      queue_.pop_front();
      if (node == &y_ && std::holds_alternative<PeerData>(event)) {
        on_the_way_.push_back(event);
      } else {
        Give(*node, event);
      }
    }
  }
  void PassTicks(absl::Duration time) {
    const absl::Duration end = now_ + time;
    while (now_ < end) {
      now_ += absl::Milliseconds(100);
      for (Node* node : nodes_) Give(*node, Tick{});
      DeliverControl();
    }
  }

  std::deque<Event> on_the_way_;
};

TEST_F(SlowLinkTest, DataThatStillReachesOneIsNoStallForTheOther) {
  Begin();
  for (int n = 0; n < 2; ++n) Submit(n, OneBucket(10, kElements));
  DeliverControl();
  ASSERT_EQ(on_the_way_.size(), kFrames);
  while (!on_the_way_.empty()) {
    PassTicks(absl::Seconds(4));
    Give(y_, on_the_way_.front());
    on_the_way_.pop_front();
  }
  Deliver();
  for (Node* node : nodes_) {
    ASSERT_NE(node->Last<wire::Committed>(), nullptr);
    EXPECT_EQ(node->Last<wire::Committed>()->attempt, 1u);
  }
}

TEST_F(SlowLinkTest, DataThatReachesNobodyAnyMoreIsAStall) {
  Begin();
  for (int n = 0; n < 2; ++n) Submit(n, OneBucket(10, kElements));
  DeliverControl();
  for (uint64_t n = 0; n < kFrames / 2; ++n) {
    PassTicks(absl::Seconds(4));
    Give(y_, on_the_way_.front());
    on_the_way_.pop_front();
  }
  PassTicks(absl::Seconds(62));  // The step deadline, and what is under way.
  for (Node* node : nodes_) {
    ASSERT_NE(node->Last<wire::Failed>(), nullptr);
    EXPECT_EQ(node->Last<wire::Committed>(), nullptr);
  }
}

// One that says so and sends no vote either: by its word alone. Nor does it
// help to have named a late trainer meanwhile.
TEST_F(SlowLinkTest, TheWordThatDataArrivesIsBelievedForSoLong) {
  Begin();
  for (int n = 0; n < 2; ++n) Submit(n, OneBucket(10, kElements));
  DeliverControl();
  const auto lie = [&] {
    now_ += absl::Seconds(1);
    for (uint16_t attempt = 1; attempt <= protocol::kMaxAttempts; ++attempt) {
      for (const char* missing : {"rank 1 has not submitted", ""}) {
        const protocol::Late late{generation_.ComputeDigest(), 0, 10, attempt,
                                  missing};
        Give(x_, PeerControl{"y", {generation_.group, late}});
      }
    }
    Give(x_, Tick{});
    queue_.clear();
  };
  const absl::Duration begun = now_;
  while (now_ - begun < absl::Minutes(29)) lie();
  EXPECT_EQ(x_.Last<wire::Failed>(), nullptr);
  while (now_ - begun < absl::Minutes(32)) lie();
  EXPECT_NE(x_.Last<wire::Failed>(), nullptr);
}

}  // namespace
}  // namespace pactrain::agent
