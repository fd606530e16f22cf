#include "agent/exchange/tcp/key_proofs.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using base::StatusIs;
using protocol::Digest;
using protocol::GenerationKey;
using protocol::KeyProof;
using ::testing::HasSubstr;

constexpr auto kRefused = absl::StatusCode::kUnauthenticated;

GenerationKey MakeKey(uint64_t generation, uint8_t byte = 1) {
  GenerationKey key{{9, generation}, {}};
  key.key.bytes.fill(byte);
  return key;
}

KeyProof ProofOf(KeyProofs& from, const GenerationKey& key) {
  const auto proofs = from.SetGenerations({key});
  EXPECT_OK(proofs);
  EXPECT_EQ(proofs->size(), 1u);
  return proofs->at(0);
}

class KeyProofsTest : public ::testing::Test {
 protected:
  KeyProofs a_{{"a", "b", "connection 1"}};
  KeyProofs b_{{"b", "a", "connection 1"}};
  const GenerationKey first_ = MakeKey(1);
};

TEST_F(KeyProofsTest, NothingIsHeardBeforeTheProof) {
  const KeyProof of_a = ProofOf(a_, first_);
  const KeyProof of_b = ProofOf(b_, first_);
  EXPECT_THAT(b_.CheckHeard(first_.generation),
              StatusIs(kRefused, HasSubstr("agent a speaks of generation")));
  EXPECT_OK(b_.OnProof(of_a));
  EXPECT_OK(b_.CheckHeard(first_.generation));
  EXPECT_FALSE(a_.CheckHeard(first_.generation).ok());
  EXPECT_OK(a_.OnProof(of_b));
  EXPECT_OK(a_.CheckHeard(first_.generation));
}

TEST_F(KeyProofsTest, AProofWaitsForItsGeneration) {
  ASSERT_OK(b_.OnProof(ProofOf(a_, first_)));
  ASSERT_OK(b_.SetGenerations({first_}));
  EXPECT_OK(b_.CheckHeard(first_.generation));
}

TEST_F(KeyProofsTest, AWrongProofThatWaitedIsRefusedOnceItsGenerationIsKnown) {
  ASSERT_OK(b_.OnProof(ProofOf(a_, MakeKey(1, 7))));
  EXPECT_THAT(b_.SetGenerations({first_}),
              StatusIs(kRefused, HasSubstr("agent a does not hold the key")));
}

TEST_F(KeyProofsTest, AnotherKeyIsRefused) {
  ProofOf(b_, first_);
  EXPECT_THAT(b_.OnProof(ProofOf(a_, MakeKey(1, 7))),
              StatusIs(kRefused, HasSubstr("agent a does not hold the key")));
  EXPECT_FALSE(b_.CheckHeard(first_.generation).ok());
}

TEST_F(KeyProofsTest, EveryBitOfAProofCounts) {
  const KeyProof good = ProofOf(a_, first_);
  ProofOf(b_, first_);
  for (size_t bit = 0; bit < 8 * good.mac.size(); ++bit) {
    KeyProof bad = good;
    bad.mac[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_FALSE(b_.OnProof(bad).ok()) << bit;
  }
  EXPECT_OK(b_.OnProof(good));
}

TEST_F(KeyProofsTest, AProofOfOneGenerationIsNoneOfAnother) {
  KeyProof proof = ProofOf(a_, first_);
  // Even with the same key.
  const GenerationKey second = MakeKey(2);
  ASSERT_OK(b_.SetGenerations({first_, second}));
  proof.generation = second.generation;
  EXPECT_THAT(b_.OnProof(proof), StatusIs(kRefused, HasSubstr("key")));
}

TEST_F(KeyProofsTest, sec_dataplane_replay_OnAnotherConnection) {
  const KeyProof recorded = ProofOf(a_, first_);
  KeyProofs later({"b", "a", "connection 2"});
  ASSERT_OK(later.SetGenerations({first_}));
  EXPECT_THAT(later.OnProof(recorded),
              StatusIs(kRefused, HasSubstr("of another connection")));
}

TEST_F(KeyProofsTest, sec_dataplane_replay_BackToItsSender) {
  const KeyProof own = ProofOf(b_, first_);
  EXPECT_THAT(b_.OnProof(own), StatusIs(kRefused, HasSubstr("key")));
}

TEST_F(KeyProofsTest, AGenerationIsProvenOnceAndForgottenWithItsKey) {
  const KeyProof proof = ProofOf(a_, first_);
  ASSERT_OK(b_.SetGenerations({first_}));
  ASSERT_OK(b_.OnProof(proof));
  ASSERT_OK_AND_ASSIGN(const auto more,
                       b_.SetGenerations({first_, MakeKey(2)}));
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(more[0].generation, MakeKey(2).generation);
  EXPECT_OK(b_.CheckHeard(first_.generation));
  ASSERT_OK(b_.SetGenerations({}));
  // Whatever is said of it is nobody's now; should it come back, it has to be
  // proven anew.
  EXPECT_OK(b_.CheckHeard(first_.generation));
  ASSERT_OK(b_.SetGenerations({first_}));
  EXPECT_FALSE(b_.CheckHeard(first_.generation).ok());
}

TEST_F(KeyProofsTest, sec_limits_ProofsThatWait) {
  const auto proof = [&](uint64_t generation) {
    return KeyProof{{9, generation}, {}};
  };
  const KeyProof oldest = ProofOf(a_, first_);
  const auto oldest_counts = [&](size_t more) {
    KeyProofs b({"b", "a", "connection 1"});
    EXPECT_OK(b.OnProof(oldest));
    for (size_t i = 0; i < more; ++i) EXPECT_OK(b.OnProof(proof(2 + i)));
    EXPECT_OK(b.SetGenerations({first_}));
    return b.CheckHeard(first_.generation).ok();
  };
  EXPECT_TRUE(oldest_counts(KeyProofs::kMaxWaiting - 1));
  EXPECT_FALSE(oldest_counts(KeyProofs::kMaxWaiting));
}

}  // namespace
}  // namespace pactrain::agent
