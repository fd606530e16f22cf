#include "coordinator/driver/seat_proofs.h"

#include <functional>
#include <vector>

#include "base/tls/mac.h"
#include "gtest/gtest.h"
#include "protocol/seat_claim.h"
#include "protocol/test_messages.h"

namespace pactrain::coordinator {
namespace {

using protocol::Digest;
using protocol::Trainer;

base::Secret SecretOf(uint8_t byte) {
  base::Secret secret;
  secret.bytes.fill(byte);
  return secret;
}

std::vector<base::Secret> SeatsOf(const std::string& agent, uint8_t cluster = 7,
                                  uint64_t number = 4) {
  protocol::StartGeneration start{protocol::MakeGeneration()};
  start.generation.number = number;
  start.generation.members[0].ranks.push_back(3);
  start.generation.members[0].attach_ids.push_back({9, 3});
  TellSeats(SecretOf(cluster), agent, start);
  return start.seats;
}

// Of rank 2, at agent a, of generation 4; as its agent proves it.
protocol::TrainerJoined Claim() {
  protocol::TrainerJoined joined;
  joined.group = protocol::kGroup;
  Trainer& trainer = joined.trainer;
  trainer.attach_id = {9, 77};
  trainer.last_attach_id = {9, 2};
  trainer.last_generation = 4;
  trainer.lineage = {{8, 8}, 40};
  trainer.resume_step = 50;
  trainer.parameters = {3, 3};
  trainer.proof = base::ComputeMac(
      SeatsOf("a")[0], protocol::FieldsOfClaim(joined.group, trainer));
  return joined;
}

bool IsProven(const protocol::TrainerJoined& joined) {
  protocol::LocalTrainers local;
  local.here = {joined};
  const protocol::AgentMessage message =
      WithProofs(SecretOf(7), protocol::AgentMessage(local));
  return std::get<protocol::LocalTrainers>(message).here[0].proven;
}

TEST(SeatProofsTest, EachSeatHasASecretOfItsOwnThatItsAgentAloneIsTold) {
  ASSERT_EQ(SeatsOf("a").size(), 2u);
  ASSERT_EQ(SeatsOf("b").size(), 1u);
  EXPECT_TRUE(SeatsOf("x").empty());
  EXPECT_FALSE(SeatsOf("a")[0] == SeatsOf("a")[1]);
  EXPECT_FALSE(SeatsOf("a")[0] == SeatsOf("b")[0]);
  EXPECT_FALSE(SeatsOf("a")[0] == SeatsOf("a", 8)[0]);
  EXPECT_FALSE(SeatsOf("a")[0] == SeatsOf("a", 7, 5)[0]);
  EXPECT_TRUE(SeatsOf("a") == SeatsOf("a"));  // However often it is told.
}

TEST(SeatProofsTest, WhoHadTheSeatProvesItAndNobodyElse) {
  EXPECT_TRUE(IsProven(Claim()));
  protocol::TrainerJoined none = Claim();
  none.trainer.proof = {};
  none.proven = true;  // Nobody's word but the shell's.
  EXPECT_FALSE(IsProven(none));
  protocol::TrainerJoined other = Claim();
  other.trainer.proof = base::ComputeMac(
      SeatsOf("b")[0], protocol::FieldsOfClaim(other.group, other.trainer));
  EXPECT_FALSE(IsProven(other));
}

TEST(SeatProofsTest, AProofHoldsForAllThatItIsOf) {
  const std::vector<std::function<void(protocol::TrainerJoined&)>> changes = {
      [](auto& j) { ++j.group.model; },
      [](auto& j) { j.group.job = "other"; },
      [](auto& j) { ++j.trainer.attach_id.lo; },
      [](auto& j) { ++j.trainer.last_attach_id.lo; },
      [](auto& j) { ++j.trainer.last_generation; },
      [](auto& j) { ++j.trainer.lineage.id.hi; },
      [](auto& j) { ++j.trainer.lineage.committed; },
      [](auto& j) { ++j.trainer.resume_step; },
      [](auto& j) { ++j.trainer.model_digest.hi; },
      [](auto& j) { ++j.trainer.parameters.lo; },
      [](auto& j) { j.trainer.parameters = {}; },
  };
  for (const auto& change : changes) {
    protocol::TrainerJoined joined = Claim();
    change(joined);
    EXPECT_FALSE(IsProven(joined)) << &change - changes.data();
  }
}

// Whoever was told one secret is one trainer.
TEST(SeatProofsTest, ASeatOfAnotherTrainerIsNoProof) {
  protocol::TrainerJoined joined = Claim();
  joined.trainer.attach_id = {10, 77};
  joined.trainer.proof = base::ComputeMac(
      SeatsOf("a")[0], protocol::FieldsOfClaim(joined.group, joined.trainer));
  EXPECT_FALSE(IsProven(joined));
}

}  // namespace
}  // namespace pactrain::coordinator
