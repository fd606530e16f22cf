// What an agent of several trainers tells the coordinator of their votes.
#include <cstdint>
#include <variant>

#include "agent/core/test_pair.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using ::testing::SizeIs;

constexpr uint32_t kTrainers = 3;

class VotesTest : public Pair {
 protected:
  VotesTest() {
    generation_.world_size = kTrainers + 1;
    protocol::Member& x = generation_.members[0];
    x.ranks.clear();
    x.attach_ids.clear();
    Give(x_, CoordinatorConnected{});
    for (uint32_t rank = 0; rank < kTrainers; ++rank) {
      const wire::Hello hello = MakeHello(rank, kTrainers + 1);
      x.ranks.push_back(rank);
      x.attach_ids.push_back({rank + 1, 1});
      Give(x_, TrainerHello{rank + 1,
                            hello,
                            {absl::MakeConstSpan(x_.slot, x_.bytes),
                             absl::MakeSpan(x_.result, x_.bytes)}});
    }
    generation_.members[1].ranks = {kTrainers};
    generation_.members[1].attach_ids = {{kTrainers + 1, 1}};
    Give(x_, protocol::CoordinatorMessage(
                 protocol::StartGeneration{generation_, KeyOf(3), {}}));
    x_.to_coordinator.clear();
  }

  void Vote(uint32_t rank, uint64_t mask) {
    auto vote = MakeMessage<wire::Vote>(wire::Kind::kVote);
    vote.mask_digest = {mask, 1};
    vote.steps_unchanged = vote.settle_steps = 1;
    vote.elements = 100;
    vote.kept_elements = 50;
    Give(x_, TrainerMessage{rank + 1, vote});
  }
};

TEST_F(VotesTest, VotesAfterOneStepAreToldTogether) {
  for (uint32_t rank = 0; rank < kTrainers; ++rank) {
    EXPECT_THAT(x_.to_coordinator, SizeIs(0)) << rank;
    Vote(rank, 5);
  }
  ASSERT_THAT(x_.to_coordinator, SizeIs(1));
  EXPECT_THAT(x_.Local().votes, SizeIs(kTrainers));
  Pass(absl::Seconds(1));
  EXPECT_THAT(x_.Local().votes, SizeIs(kTrainers));
}

TEST_F(VotesTest, AVoteIsToldAtTheNextTickIfTheOthersHaveNone) {
  Vote(1, 5);
  EXPECT_THAT(x_.to_coordinator, SizeIs(0));
  Give(x_, Tick{});
  ASSERT_THAT(x_.Local().votes, SizeIs(1));
  EXPECT_EQ(x_.Local().votes[0].rank, 1u);
}

TEST_F(VotesTest, AVoteIsToldBeforeADecisionIsRefusedBecauseOfIt) {
  Vote(0, 5);
  protocol::Prepare prepare;
  prepare.group = generation_.group;
  prepare.generation = generation_.number;
  prepare.decision.version = 2;
  prepare.decision.mode = protocol::Mode::kCompacted;
  prepare.decision.mask_digest = {6, 1};
  prepare.decision.layout_digest = {4, 4};
  Give(x_, protocol::CoordinatorMessage(prepare));
  ASSERT_THAT(x_.to_coordinator, SizeIs(2));
  EXPECT_THAT(x_.Local().votes, SizeIs(1));
  const auto* answer =
      std::get_if<protocol::PrepareAnswer>(&x_.to_coordinator[1]);
  ASSERT_NE(answer, nullptr);
  EXPECT_FALSE(answer->accepted);
}

}  // namespace
}  // namespace pactrain::agent
