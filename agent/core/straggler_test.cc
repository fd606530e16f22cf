// Trainers that live and do not submit: two agents of one trainer each.
#include "agent/core/agent_state.h"
#include "agent/core/test_pair.h"
#include "gmock/gmock.h"

namespace pactrain::agent {
namespace {

using protocol::OnShrink;
using testing::HasSubstr;

class StragglerTest : public Pair {
 protected:
  const wire::Failed* Failed(const Node& node) {
    return node.Last<wire::Failed>();
  }
  const protocol::StepReport* LastReport(const Node& node) {
    const protocol::StepReport* last = nullptr;
    for (const auto& message : node.to_coordinator) {
      const auto* report = std::get_if<protocol::StepReport>(&message);
      if (report != nullptr) last = report;
    }
    return last;
  }
};

TEST_F(StragglerTest, IsWaitedForMuchLongerThanTheStepDeadline) {
  Begin();
  Submit(0, OneBucket(10, 50));
  Pass(absl::Minutes(29));
  Submit(1, OneBucket(10, 50));
  Deliver();
  for (Node* node : nodes_) {
    ASSERT_NE(node->Last<wire::Committed>(), nullptr);
    EXPECT_EQ(node->Last<wire::Committed>()->attempt, 1);
    // Nothing was sent a second time.
    EXPECT_EQ(node->Last<wire::Committed>()->sent_bytes, 264u);
  }
}

// The leaf of a tree hears nothing of a step before it has submitted itself.
TEST_F(StragglerTest, IsWaitedForAlsoWhereItKnowsNothingOfTheStep) {
  generation_.plan.swap = false;
  generation_.plan.trees = {{{1, 1}}};
  Begin();
  Submit(0, OneBucket(10, 50));
  Pass(absl::Minutes(2));
  Submit(1, OneBucket(10, 50));
  Deliver();
  Submit(1, OneBucket(11, 50));
  Pass(absl::Minutes(2));
  Submit(0, OneBucket(11, 50));
  Deliver();
  for (Node* node : nodes_) {
    ASSERT_NE(node->Last<wire::Committed>(), nullptr);
    EXPECT_EQ(node->Last<wire::Committed>()->step, 11u);
    EXPECT_EQ(node->Last<wire::Failed>(), nullptr);
  }
}

TEST_F(StragglerTest, TheOthersAreToldWhomTheyWaitFor) {
  Begin();
  Submit(0, OneBucket(10, 50));
  Pass(absl::Minutes(1));
  ASSERT_NE(x_.Last<wire::Waiting>(), nullptr);
  EXPECT_THAT(x_.Last<wire::Waiting>()->text,
              HasSubstr("waits: agent y (site b): rank 1 has not submitted "
                        "bucket 0"));
}

// Nobody but agents' logs had a name for half an hour.
TEST_F(StragglerTest, TheCoordinatorIsToldWhomTheStepWaitsFor) {
  Begin();
  Submit(0, OneBucket(10, 50));
  Pass(absl::Minutes(1));
  for (const Node* node : nodes_) {
    ASSERT_NE(LastReport(*node), nullptr);
    EXPECT_EQ(LastReport(*node)->waits_for,
              node == &x_
                  ? "agent y (site b): rank 1 has not submitted bucket 0"
                  : "");
  }
  Submit(1, OneBucket(10, 50));
  Deliver();
  Pass(absl::Seconds(2));
  EXPECT_EQ(LastReport(x_)->waits_for, "");
}

TEST_F(StragglerTest, InTheEndTheStepIsRefused) {
  Begin();
  Submit(0, OneBucket(10, 50));
  Pass(absl::Minutes(30) + absl::Seconds(1));
  ASSERT_NE(Failed(x_), nullptr);
  EXPECT_EQ(Failed(x_)->final, 0);
  EXPECT_THAT(Failed(x_)->text,
              HasSubstr("agent y (site b): rank 1 has not submitted bucket 0 "
                        "for 30m"));
  Submit(1, OneBucket(10, 50));
  ASSERT_NE(Failed(y_), nullptr);
  EXPECT_EQ(Failed(y_)->final, 0);
}

TEST_F(StragglerTest, WhereRanksComeAndGoItIsLostInTheEnd) {
  generation_.on_shrink = OnShrink::kContinue;
  Begin();
  Submit(0, OneBucket(10, 50));
  Pass(absl::Minutes(30) + absl::Seconds(1));
  for (Node* node : nodes_) {
    ASSERT_NE(Failed(*node), nullptr);
    EXPECT_EQ(Failed(*node)->final, 1);
    EXPECT_EQ(Failed(*node)->may_rejoin, 1);
    EXPECT_THAT(Failed(*node)->text, HasSubstr("rank 1 has not submitted"));
    // It lives, and nobody has to wait for it.
    const std::vector<protocol::TrainerLeft> left = node->Local().left;
    ASSERT_EQ(left.size(), 1u);
    EXPECT_TRUE(left[0].may_return);
    EXPECT_EQ(left[0].straggled, node == &y_);
  }
}

TEST_F(StragglerTest, IsNotWaitedForWhereItsAgentFallsSilent) {
  Begin();
  Submit(0, OneBucket(10, 50));
  Pass(absl::Minutes(1));
  const absl::Duration end = now_ + absl::Seconds(60);
  while (now_ < end && Failed(x_) == nullptr) {
    now_ += absl::Milliseconds(100);
    Give(x_, Tick{});
    queue_.clear();
  }
  EXPECT_NE(Failed(x_), nullptr);
}

}  // namespace
}  // namespace pactrain::agent
