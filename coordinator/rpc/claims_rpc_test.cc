// Who claims a seat, or a state, that it has not, through the server's calls
// with certificates.
#include "base/tls/mac.h"
#include "coordinator/rpc/test_teams.h"
#include "gmock/gmock.h"
#include "protocol/seat_claim.h"

namespace pactrain::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using ClaimsRpcTest = TeamsFixture;

// Attack 1: it says that it was of the job's generation.
TEST_F(ClaimsRpcTest, sec_AClaimOfAnotherTeamsGenerationIsRefused) {
  Form();
  const auto x = Agent("x");
  auto claim = Joined("vision", 0, 2);
  claim.trainer.last_attach_id = Vision().generation->members[0].attach_ids[0];
  claim.trainer.lineage = Vision().generation->lineage;
  x->SayOfTrainers(claim);
  ASSERT_TRUE(x->Await<protocol::JoinRefused>());
  x->SayOfTrainers(Joined("vision", 0, 2, 1));
  ASSERT_TRUE(x->Await<protocol::JoinRefused>());
  protocol::TrainerLeft left;
  left.group = {"vision", 0};
  left.attach_id = Joined("vision", 0, 2).trainer.attach_id;
  left.reason = "killed";
  x->SayOfTrainers(left);
  // What it may do comes after all of that.
  x->SayOfTrainers(Joined("text", 0, 1));
  ASSERT_TRUE(x->Await<protocol::StartGeneration>());
  EXPECT_EQ(Vision().phase, GroupPhase::kRunning);
  EXPECT_EQ(Vision().generation->number, 1u);
}

// Attack 1 by an agent that may run the job: grants do not stop it.
TEST_F(ClaimsRpcTest, sec_AClaimOfASeatThatItNeverHadIsRefused) {
  lists_.run.push_back("agent/x=vision");
  Stop();
  SetUp();
  a_ = Agent("a");
  b_ = Agent("b");
  a_->SayOfTrainers(Elastic(0));
  b_->SayOfTrainers(Elastic(1));
  const auto told = a_->Await<protocol::StartGeneration>();
  ASSERT_TRUE(told);
  ASSERT_EQ(told->seats.size(), 1u);
  const auto others = b_->Await<protocol::StartGeneration>();
  ASSERT_TRUE(others);
  ASSERT_FALSE(others->seats[0] == told->seats[0]);
  const protocol::Generation generation = told->generation;

  const auto x = Agent("x");
  protocol::TrainerJoined claim = Elastic(0);
  claim.trainer.attach_id = {4, 4};
  claim.trainer.model_digest = base::DigestOf("another one");
  claim.trainer.lineage = {generation.lineage.id, 1000};
  claim.trainer.resume_step = 1000;
  claim.trainer.last_generation = 1;
  claim.trainer.last_attach_id = {4, 3};
  x->SayOfTrainers(claim);
  auto refused = x->Await<protocol::JoinRefused>();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->reason,
              HasSubstr("rank 0 (agent 'x', site 'x') claims a state of"));
  // All that other members know of a seat, and a proof of what is no secret.
  claim.trainer.attach_id = {generation.members[0].attach_ids[0].hi, 5};
  claim.trainer.last_attach_id = generation.members[0].attach_ids[0];
  claim.trainer.proof = base::ComputeMac(
      told->key, protocol::FieldsOfClaim(claim.group, claim.trainer));
  x->SayOfTrainers(claim);
  do {  // The first one is said again with it.
    refused = x->Await<protocol::JoinRefused>();
    ASSERT_TRUE(refused);
  } while (refused->attach_id != claim.trainer.attach_id);
  EXPECT_THAT(refused->reason, HasSubstr("proof is not of that seat's secret"));
  EXPECT_EQ(Vision().phase, GroupPhase::kRunning);
  EXPECT_EQ(Vision().generation->number, 1u);
  EXPECT_THAT(Audit(), HasSubstr("join refused|spiffe://pactrain/agent/x|"
                                 "vision|rank 0 (agent 'x', site 'x') claims"));

  // Who had the seat is believed.
  protocol::TrainerJoined back = Elastic(0);
  back.trainer.last_attach_id = back.trainer.attach_id;
  ++back.trainer.attach_id.lo;
  back.trainer.last_generation = 1;
  back.trainer.lineage = {generation.lineage.id, 7};
  back.trainer.resume_step = 7;
  back.trainer.proof = base::ComputeMac(
      told->seats[0], protocol::FieldsOfClaim(back.group, back.trainer));
  a_->SayOfTrainers(back);
  EXPECT_TRUE(b_->Await<protocol::EndGeneration>());
}

// A member proves its seat, and says of its state what is not so.
// Ranks 0, 1 and 2 of a job that ran, at agents a, b and x.
class MemberRpcTest : public TeamsFixture {
 protected:
  void Run() {
    lists_.run.push_back("agent/x=vision");
    Stop();
    SetUp();
    for (const char* name : {"a", "b", "x"}) {
      agents_.push_back(Agent(name));
      const auto rank = static_cast<uint32_t>(agents_.size() - 1);
      agents_.back()->SayOfTrainers(Elastic(rank, 3));
    }
    for (const auto& agent : agents_) {
      const auto start = agent->Await<protocol::StartGeneration>();
      ASSERT_TRUE(start);
      told_.push_back(*start);
    }
  }
  // With the proof of its seat, after its generation ended.
  void ComeBack(uint32_t rank, uint64_t committed, uint64_t parameters) {
    protocol::TrainerJoined back = Elastic(rank, 3);
    agents_[rank]->SayOfTrainers(protocol::TrainerLeft{
        back.group, rank, back.trainer.attach_id, "its generation ended",
        /*generation_ended=*/true, /*may_return=*/true});
    back.trainer.last_attach_id = back.trainer.attach_id;
    ++back.trainer.attach_id.lo;
    back.trainer.last_generation = 1;
    back.trainer.lineage = {told_[rank].generation.lineage.id, committed};
    back.trainer.parameters = {parameters, 1};
    back.trainer.resume_step = committed;
    back.trainer.proof =
        base::ComputeMac(told_[rank].seats[0],
                         protocol::FieldsOfClaim(back.group, back.trainer));
    agents_[rank]->SayOfTrainers(back);
  }
  // Why x was refused, while the others went on without it after 7 steps.
  std::string WhyXIsOut() {
    const auto refused = agents_[2]->Await<protocol::JoinRefused>();
    if (!refused) return "it was not";
    const auto start = agents_[0]->Await<protocol::StartGeneration>();
    if (!start || start->generation.number != 2 ||
        start->generation.world_size != 2 ||
        start->generation.lineage.committed != 7) {
      return "the others did not go on";
    }
    EXPECT_THAT(Audit(), HasSubstr("join refused|spiffe://pactrain/agent/x|"
                                   "vision|rank 2 (agent 'x', site 'x') "
                                   "claims"));
    return refused->reason;
  }

 private:
  std::vector<std::unique_ptr<TestAgent>> agents_;
  std::vector<protocol::StartGeneration> told_;
};

TEST_F(MemberRpcTest, sec_AMemberWhoseClaimTheOthersContradictIsRefused) {
  Run();
  ComeBack(2, 1'000'000'000, 5);
  ComeBack(0, 7, 5);
  ComeBack(1, 7, 5);
  EXPECT_THAT(WhyXIsOut(),
              AllOf(HasSubstr("rank 2 (agent 'x', site 'x') claims a state of"),
                    HasSubstr("after 1000000000 steps"),
                    HasSubstr("by the word of agent 'a', 'b' nobody of it")));
}

TEST_F(MemberRpcTest, sec_AMemberThatWouldGiveOtherParametersIsRefused) {
  Run();
  ComeBack(2, 7, 6);
  ComeBack(0, 7, 5);
  ComeBack(1, 7, 5);
  EXPECT_THAT(WhyXIsOut(),
              AllOf(HasSubstr("other parameters after the same steps: it has"),
                    HasSubstr("; agent 'a', 'b' ")));
}

}  // namespace
}  // namespace pactrain::coordinator
