// Votes and activation, with a fake agent that records the votes.
#include "trainer/cpp/mask_keeper.h"

#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/fake_agent.h"

namespace pactrain {
namespace {

using trainer::FakeAgent;

// A model of one parameter of four elements; `kept` as bits, the first lowest.
class MaskKeeperTest : public ::testing::Test {
 protected:
  MaskSet Set(uint8_t kept) const {
    return MaskSet(table_, {internal::Unpack(std::vector{kept}, 4)});
  }

  Decision Compacted(uint64_t version, const MaskSet& masks) const {
    return {.version = version,
            .mode = Mode::kCompacted,
            .codec = Codec::kFp32,
            .mask_digest = masks.digest(),
            .layout_digest = table_.ModelDigest()};
  }

  static Decision Full(uint64_t version) { return {.version = version}; }

  SessionOptions Options(const FakeAgent& agent) const {
    return {.config = {.agent = agent.address(),
                       .job = "job",
                       .launch = "launch",
                       .world_size = 4},
            .elements = table_.elements()};
  }

  const ParameterTable table_{"Net", {{.name = "weight", .shape = {2, 2}}}};
  const Layout layout_{table_, 1000};
};

TEST_F(MaskKeeperTest, VotesOnceAfterTheFirstCommit) {
  FakeAgent agent([this](FakeAgent& a) {
    a.Attach();
    const auto vote = a.Receive<wire::Vote>();
    EXPECT_EQ(vote.header.kind, wire::Kind::kVote);
    EXPECT_EQ(vote.mask_digest.lo, Set(0b0111).digest().lo);
    EXPECT_EQ(vote.layout_digest.lo, table_.ModelDigest().lo);
    EXPECT_EQ(vote.steps_unchanged, 1u);
    EXPECT_EQ(vote.settle_steps, 1u);
    EXPECT_EQ(vote.kept_elements, 3u);
    EXPECT_EQ(vote.inside_decision, 1);
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  Session session(Options(agent));
  MaskKeeper keeper(&session, &table_, &layout_, {Set(0b0111), 1});
  keeper.Start();
  EXPECT_FALSE(keeper.Committed(Full(1)));
  EXPECT_FALSE(keeper.Committed(Full(1)));
}

TEST_F(MaskKeeperTest, VotesUntilTheMasksHaveSettledAsRankZeroSays) {
  std::vector<uint32_t> ages;
  {
    FakeAgent agent([&ages](FakeAgent& a) {
      a.Attach();
      for (int i = 0; i < 3; ++i) {
        const auto vote = a.Receive<wire::Vote>();
        EXPECT_EQ(vote.settle_steps, 3u);
        ages.push_back(vote.steps_unchanged);
      }
      EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
    });
    Session session(Options(agent));
    MaskKeeper keeper(&session, &table_, &layout_, {Set(0b0111), 3});
    keeper.Start();
    for (int i = 0; i < 5; ++i) keeper.Committed(Full(1));
  }
  EXPECT_THAT(ages, ::testing::ElementsAre(1, 2, 3));
}

TEST_F(MaskKeeperTest, ActsOnlyOnADecisionForMasksThatItKnows) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    a.Receive<wire::Vote>();
  });
  Session session(Options(agent));
  MaskKeeper keeper(&session, &table_, &layout_, {Set(0b0111), 1});
  keeper.Start();
  EXPECT_EQ(keeper.active(), nullptr);
  EXPECT_FALSE(keeper.Committed(Compacted(2, Set(0b0001))));
  EXPECT_EQ(keeper.active(), nullptr);
  EXPECT_TRUE(keeper.Committed(Compacted(3, Set(0b0111))));
  ASSERT_NE(keeper.active(), nullptr);
  EXPECT_EQ(keeper.active()->digest(), Set(0b0111).digest());
  // FULL takes nothing back.
  EXPECT_FALSE(keeper.Committed(Full(4)));
  EXPECT_NE(keeper.active(), nullptr);
  EXPECT_FALSE(keeper.Committed(Compacted(5, Set(0b0111))));
}

TEST_F(MaskKeeperTest, SyncTakesRankZerosMasksAndTheDecisionOfThatStep) {
  FakeAgent agent([this](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    // Nobody failed; elements 0 and 1 are kept; of kind zero.
    const uint32_t words[] = {0, 0b0011, 0};
    ASSERT_EQ(submits[0].elements, std::size(words));
    std::memcpy(a.result(submits[0].offset), words, sizeof(words));
    wire::Decision next = {};
    next.version = 2;
    next.mode = PT_COMPACTED;
    next.codec = PT_CODEC_FP32;
    const Digest in_force = Set(0b0111).digest();
    next.mask_digest = {in_force.hi, in_force.lo};
    a.SendCommitted(submits.back(), next);
    const auto vote = a.Receive<wire::Vote>();
    EXPECT_EQ(vote.mask_digest.lo, Set(0b0011).digest().lo);
    EXPECT_EQ(vote.steps_unchanged, 0u);
    EXPECT_EQ(vote.inside_decision, 1);
  });
  Session session(Options(agent));
  MaskKeeper keeper(&session, &table_, &layout_, {Set(0b0111), 1});
  keeper.Start();
  EXPECT_TRUE(keeper.Sync(false));
  EXPECT_EQ(keeper.current().digest(), Set(0b0011).digest());
  ASSERT_NE(keeper.active(), nullptr);
  EXPECT_EQ(keeper.active()->digest(), Set(0b0111).digest());
}

TEST_F(MaskKeeperTest, NewMasksWithdrawTheVoteAndSayWhetherTheyLieInside) {
  std::vector<wire::Vote> votes;
  {
    FakeAgent agent([&votes](FakeAgent& a) {
      a.Attach();
      for (int i = 0; i < 4; ++i) votes.push_back(a.Receive<wire::Vote>());
    });
    Session session(Options(agent));
    MaskKeeper keeper(&session, &table_, &layout_, {Set(0b0111), 1});
    keeper.Start();
    EXPECT_TRUE(keeper.Committed(Compacted(2, Set(0b0111))));
    keeper.Replace(Set(0b0111));  // The same: nothing to say.
    keeper.Replace(Set(0b0011));
    EXPECT_FALSE(keeper.Committed(Compacted(2, Set(0b0111))));
    keeper.Replace(Set(0b1100));
    EXPECT_TRUE(keeper.Committed(Compacted(3, Set(0b0011))))
        << "masks of an earlier vote may still be agreed on";
  }
  ASSERT_EQ(votes.size(), 4u);
  EXPECT_EQ(votes[1].steps_unchanged, 0u);
  EXPECT_EQ(votes[1].inside_decision, 1);
  EXPECT_EQ(votes[2].steps_unchanged, 1u);
  EXPECT_EQ(votes[3].steps_unchanged, 0u);
  EXPECT_EQ(votes[3].inside_decision, 0);
}

}  // namespace
}  // namespace pactrain
