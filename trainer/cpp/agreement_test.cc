// What is settled at attach, in the words of the Python client (agreement.py).
#include "trainer/cpp/agreement.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/fake_agent.h"

namespace pactrain::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using trainer::FakeAgent;

constexpr uint32_t kRank = 1;  // Of FakeAgent's four.

// Answers one step of words with `words`.
void AnswerWords(FakeAgent& agent, const std::vector<uint32_t>& words) {
  const auto submits = agent.ReceiveStep();
  ASSERT_EQ(submits.size(), 1u);
  ASSERT_EQ(submits[0].elements, words.size());
  std::memcpy(agent.result(submits[0].offset), words.data(), 4 * words.size());
  wire::Decision next = {};
  next.mode = PT_FULL;
  next.codec = PT_CODEC_FP32;
  agent.SendCommitted(submits.back(), next);
}

class AgreementTest : public ::testing::Test {
 protected:
  AttachConfig Config(const FakeAgent& agent) const {
    return {.agent = agent.address(),
            .job = "job",
            .launch = "launch",
            .rank = kRank,
            .world_size = 4};
  }

  SessionOptions Options(const FakeAgent& agent) const {
    return {.config = Config(agent), .elements = table_.elements()};
  }

  // Rank 0's second parameter keeps its elements 0 and 2, and is frozen.
  static std::vector<uint32_t> RankZeroSays(uint32_t failures = 0) {
    return {failures, ~0u, 0b0101, 0b10};
  }

  const ParameterTable table_{"Net", {{"a", {2, 2}}, {"b", {4}}}};
  const MaskSet none_{table_, {}};
};

TEST_F(AgreementTest, MasksAndKindsOfRankZeroAreTaken) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    AnswerWords(a, RankZeroSays());
  });
  Session session(Options(agent));
  const MaskSet masks = BroadcastMasks(session, table_, none_);
  EXPECT_TRUE(masks[0].empty());
  EXPECT_THAT(masks[1], ElementsAre(1, 0, 1, 0));
  EXPECT_FALSE(masks.is_frozen(0));
  EXPECT_TRUE(masks.is_frozen(1));
}

TEST_F(AgreementTest, RankZeroSendsFailuresMasksAndKinds) {
  std::vector<uint32_t> sent(4);
  {
    FakeAgent agent([&sent](FakeAgent& a) {
      a.Attach();
      const auto submits = a.ReceiveStep();
      ASSERT_EQ(submits[0].elements, sent.size());
      std::memcpy(sent.data(), a.slot(submits[0].offset), 4 * sent.size());
      a.SendFailed(7, wire::Code::kStepNotApplied, false, "enough.\nGo on.");
    });
    SessionOptions options = Options(agent);
    options.config.rank = 0;
    Session session(options);
    const MaskSet mine(table_, {{}, {1, 0, 1, 0}}, {false, true});
    EXPECT_THROW(BroadcastMasks(session, table_, mine), StepNotAppliedError);
  }
  EXPECT_THAT(sent, ElementsAre(0u, 0b1111u, 0b0101u, 0b10u));
}

TEST_F(AgreementTest, AFailureOfAnyRankIsEverybodysError) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    AnswerWords(a, RankZeroSays(0b1000));
  });
  Session session(Options(agent));
  try {
    BroadcastMasks(session, table_, none_);
    FAIL() << "no error";
  } catch (const PacTrainError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Pruning failed on rank 3"));
  }
}

TEST_F(AgreementTest, SettlesAsRankZeroSaysAndRefusesOtherSettings) {
  const auto agree = [this](uint32_t interval_of_rank_3) {
    FakeAgent agent([this, interval_of_rank_3](FakeAgent& a) {
      a.Attach();
      std::vector<uint32_t> words;
      for (uint32_t rank = 0; rank < 4; ++rank) {
        Record record = MakeRecord(SettingsOf({}, 8, 1), none_.digest());
        record[kSettleSteps] = rank == 0 ? 3 : 1;
        if (rank == 3) record[2] = interval_of_rank_3;
        words.insert(words.end(), record.begin(), record.end());
      }
      AnswerWords(a, words);
    });
    Session session(Options(agent));
    return Agree(session, Config(agent), table_, none_, 8);
  };
  EXPECT_EQ(agree(50).settle_steps, 3u);
  try {
    agree(49);
    FAIL() << "no error";
  } catch (const RefusedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("buffer_sync_interval differs: rank 0 "
                                        "has 50, rank 3 has 49."));
  }
}

}  // namespace
}  // namespace pactrain::internal
