// Who says that he holds a state, or had a seat, and cannot prove it.
#include <string>

#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::JoinRefused;
using protocol::OnShrink;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;

class ClaimsTest : public RegroupTest {
 protected:
  base::Secret SomeProof() const {
    base::Secret proof;
    proof.bytes.fill(1);
    return proof;
  }
  // Agent x, which may run the job, claims its newest state, and more.
  void Claim() {
    t_.proven = false;
    Return("x", 0, 900);
    t_.proven = true;
  }
  void ExpectNothingHappened() {
    EXPECT_EQ(Newest().number, 1u);
    EXPECT_EQ(t_.Snapshot().phase, GroupPhase::kRunning);
    EXPECT_FALSE(t_.Got<protocol::EndGeneration>("a"));
  }
};

TEST_F(ClaimsTest, AStateOfASeatThatItNeverHadIsRefusedAndEndsNothing) {
  Start(OnShrink::kPause);
  t_.Connect("x", "z");
  Claim();
  ASSERT_TRUE(t_.Got<JoinRefused>("x"));
  EXPECT_FALSE(t_.Got<JoinRefused>("x")->replaced);
  EXPECT_THAT(t_.Got<JoinRefused>("x")->reason,
              AllOf(HasSubstr("rank 0 (agent 'x', site 'z') claims a state"),
                    HasSubstr("after 900 steps, of a seat in generation 1, "
                              "and has no proof of it"),
                    HasSubstr("Nothing of it was taken")));
  t_.Pass(20, {"a", "b", "x"});
  ExpectNothingHappened();
}

TEST_F(ClaimsTest, NorDoesAProofOfSomethingElseHelp) {
  Start(OnShrink::kPause);
  t_.Connect("x", "z");
  t_.proof = SomeProof();
  Claim();
  EXPECT_THAT(t_.Got<JoinRefused>("x")->reason,
              HasSubstr("its proof is not of that seat's secret"));
  ExpectNothingHappened();
}

TEST_F(ClaimsTest, WhoProvesNothingGivesNoStateToThoseWhoMeetAgain) {
  Start(OnShrink::kContinue);
  t_.Connect("x", "z");
  t_.Leave("b", 3, "killed by signal 9");
  EndAt("b", {2}, 7);
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "rank 3 left", true);
  Claim();
  for (uint32_t rank : {0, 1}) Return("a", rank, 7);
  t_.Pass(12, {"a", "b", "x"});
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 3u);
  EXPECT_EQ(Newest().lineage.committed, 7u);
}

// It would stop the job: nothing begins beside a state that the journal lost.
TEST_F(ClaimsTest, ALaterGenerationThatIsNotProvenStopsNothing) {
  Start(OnShrink::kContinue);
  t_.Connect("x", "z");
  t_.last_generation = 7;
  Claim();
  t_.last_generation = 0;
  EXPECT_TRUE(t_.Got<JoinRefused>("x"));
  LoseRankThree();
  EXPECT_EQ(Newest().number, 2u);
}

TEST_F(ClaimsTest, AnotherAgentDoesNotTakeATrainersPlaceByItsId) {
  Start(OnShrink::kPause);
  t_.Connect("x", "z");
  protocol::Trainer stolen = t_.TrainerOf("b", 3);
  stolen.attach_id.lo += 1000;
  t_.Say("x", protocol::TrainerJoined{t_.group, stolen, 0});
  EXPECT_THAT(t_.Got<JoinRefused>("x")->reason,
              HasSubstr("says that it is one that had a seat before, and has "
                        "no proof of it"));
  ExpectNothingHappened();
}

TEST_F(ClaimsTest, ASeatFromBeforeTheLineageBeganProvesNothingOfIt) {
  Start(OnShrink::kPause);
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "killed by signal 9");
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "killed by signal 9");
  for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4);
  for (uint32_t rank : {2, 3}) t_.Join("b", rank, 4);
  ASSERT_EQ(Newest().number, 2u);
  protocol::Trainer old = t_.TrainerOf("a", 0);
  old.attach_id = {5, 5};
  old.lineage = {Newest().lineage.id, 40};
  old.last_generation = 1;
  t_.Clear();
  t_.Say("a", protocol::TrainerJoined{t_.group, old, 0, /*proven=*/true});
  EXPECT_THAT(t_.Got<JoinRefused>("a")->reason,
              HasSubstr("before that lineage began"));
  EXPECT_EQ(Newest().number, 2u);
}

TEST_F(ClaimsTest, ANumberThatIsNotProvenIsNotGoneBeyond) {
  Start(OnShrink::kContinue);
  t_.Connect("c", "z");
  t_.proven = false;
  t_.last_generation = 1'000'000;
  t_.Join("c", 0, 1, "run-2");
  t_.last_generation = 0;
  t_.proven = true;
  EndAt("a", {0, 1}, 7);
  EndAt("b", {2, 3}, 7);
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_EQ(Newest().world_size, 5u);
}

// They know chunks of 65,536 elements only.
TEST_F(ClaimsTest, ChunksAreEvenOnceNoAgentOfTheReleaseBeforeIsAMember) {
  t_.on_shrink = OnShrink::kContinue;
  t_.Connect("a", "x");
  t_.proves = false;
  t_.Connect("b", "y");
  for (uint32_t rank : {0, 1}) t_.Join("a", rank, 3);
  t_.Join("b", 2, 3);
  EXPECT_FALSE(Newest().plan.even_chunks);
  t_.Leave("b", 2, "killed by signal 9");
  EndAt("a", {0, 1}, 7);
  t_.Pass(12, {"a", "b"});
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_TRUE(Newest().plan.even_chunks);
}

// They were told no secrets.
TEST_F(ClaimsTest, AgentsOfTheReleaseBeforeAreBelievedOfSeatsOnRecord) {
  for (const bool restarted : {false, true}) {
    t_ = TestCluster();
    t_.proves = false;
    Start(OnShrink::kContinue);
    t_.Connect("x", "z");
    t_.proven = false;
    t_.Leave("b", 3, "killed by signal 9");
    if (restarted) {
      t_.RestartCoordinator();
      for (const char* agent : {"a", "b", "x"}) {
        t_.Connect(agent, agent == std::string("a") ? "x" : "y",
                   /*same_process=*/true);
      }
    }
    EndAt("b", {2}, 7);
    EndAt("a", {0, 1}, 7);
    Return("x", 3, 900);
    t_.Pass(12, {"a", "b", "x"});
    EXPECT_TRUE(t_.Got<JoinRefused>("x"));
    EXPECT_EQ(Newest().number, 2u);
    EXPECT_EQ(Newest().world_size, 3u);
    EXPECT_EQ(Newest().lineage.committed, 7u);
  }
}

TEST_F(ClaimsTest, WhoWasToldASecretIsNotBelievedWithout) {
  Start(OnShrink::kPause);
  t_.Leave("a", 0, "its generation ended", true);
  t_.proven = false;
  Return("a", 0, 7);
  EXPECT_TRUE(t_.Got<JoinRefused>("a"));
}

// Where the journal knows nothing of the job.
TEST_F(ClaimsTest, NobodyIsBelievedAloneBesideAgentsThatHoldNothing) {
  t_.on_shrink = OnShrink::kPause;
  t_.Connect("a", "x");
  t_.Connect("x", "z");
  t_.Join("a", 0, 2);
  t_.proven = false;
  Return("x", 1, 900, 1, 2);
  EXPECT_THAT(t_.Got<JoinRefused>("x")->reason,
              HasSubstr("other agents of its launch hold none"));
  t_.Join("x", 1, 2);
  EXPECT_FALSE(Newest().donor);
}

TEST_F(ClaimsTest, WhatIsProvenGoesBeforeWhatIsNot) {
  t_.on_shrink = OnShrink::kPause;
  t_.Connect("a", "x");
  t_.Connect("x", "z");
  Return("a", 0, 7, 1, 2);
  t_.proven = false;
  Return("x", 1, 900, 1, 2);
  EXPECT_THAT(t_.Got<JoinRefused>("x")->reason,
              HasSubstr("others of its launch prove theirs"));
  t_.Join("x", 1, 2);
  EXPECT_THAT(Newest().donor, Optional(0u));
  EXPECT_EQ(Newest().lineage.committed, 7u);
}

TEST_F(ClaimsTest, ParametersOfALostJournalAreHeldAgainstEachOther) {
  t_.on_shrink = OnShrink::kPause;
  for (const char* agent : {"a", "b", "c"}) t_.Connect(agent, agent);
  t_.parameters = {6, 6};
  Return("a", 0, 7, 1, 3);
  t_.parameters = {5, 5};
  Return("b", 1, 7, 1, 3);
  Return("c", 2, 7, 1, 3);
  EXPECT_THAT(t_.Got<JoinRefused>("a")->reason,
              HasSubstr("it has 00000000 after 7; agent 'b', 'c' 00000000"));
  t_.parameters = {};
  t_.Join("a", 0, 3);
  t_.Advance(absl::Seconds(1));
  EXPECT_THAT(Newest().donor, Optional(1u));
}

TEST_F(ClaimsTest, NorIsOneOfTwoBelievedThere) {
  t_.on_shrink = OnShrink::kPause;
  for (const char* agent : {"a", "b"}) t_.Connect(agent, agent);
  for (uint64_t rank : {0, 1}) {
    t_.parameters = {rank + 5, 5};
    Return(rank == 0 ? "a" : "b", rank, 7, 1, 2);
  }
  t_.Pass(60, {"a", "b"});
  EXPECT_FALSE(t_.journal().groups.contains(t_.group));
  EXPECT_THAT(t_.Got<protocol::GroupWaiting>("a")->reason,
              HasSubstr("hold other parameters after the same steps"));
}

// It need not be one that is in the job.
TEST_F(ClaimsTest, AnotherLaunchIsNotAskedThere) {
  t_.on_shrink = OnShrink::kPause;
  for (const char* agent : {"a", "b", "x"}) t_.Connect(agent, agent);
  t_.parameters = {6, 6};
  Return("x", 0, 900, 1, 2, "evil");
  t_.parameters = {5, 5};
  Return("a", 0, 7, 1, 2);
  Return("b", 1, 7, 1, 2);
  EXPECT_THAT(Newest().donor, Optional(0u));
  EXPECT_EQ(Newest().lineage.committed, 7u);
}

TEST_F(ClaimsTest, AStateOfALostJournalIsBelievedOfAllWhoHoldIt) {
  t_.on_shrink = OnShrink::kPause;
  t_.proven = false;
  t_.Connect("a", "x");
  t_.Connect("b", "y");
  Return("a", 0, 7, 1, 2);
  Return("b", 1, 7, 1, 2);
  EXPECT_THAT(Newest().donor, Optional(0u));
}

}  // namespace
}  // namespace pactrain::coordinator
