// A state directory that is older than the states that ranks hold, where no
// agent knows it.
#include <string>

#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::GroupWaiting;
using protocol::JoinRefused;
using protocol::OnShrink;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LaterStateTest : public RegroupTest {
 protected:
  // The copy ends with generation 1; generation 3 began another lineage, whose
  // ranks 0 and 1 live. Both agents were started again.
  void RestoreAnOlderCopy() {
    Start(OnShrink::kContinue);
    t_.BackUp();
    for (uint64_t generation : {2, 3}) {
      for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "killed by signal 9");
      for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "killed by signal 9");
      for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4);
      for (uint32_t rank : {2, 3}) t_.Join("b", rank, 4);
      ASSERT_EQ(Newest().number, generation);
      ASSERT_FALSE(Newest().donor);
    }
    later_ = Newest().lineage.id;
    right_ = t_.Restore();
    const protocol::Generation old = Newest();
    ASSERT_EQ(old.number, 1u);
    t_.Connect("a", "x");
    t_.Connect("b", "y");
    // As the agents' books have it.
    for (const protocol::Member& member : old.members) {
      for (size_t i = 0; i < member.ranks.size(); ++i) {
        t_.Say(member.agent,
               protocol::TrainerLeft{t_.group, member.ranks[i],
                                     member.attach_ids[i], "ended"});
      }
    }
    for (uint32_t rank : {0, 1}) Return("a", rank, 40, 3);
  }

  protocol::Digest later_;
  TestCluster::Copy right_;
};

TEST_F(LaterStateTest, NothingBeginsBesideAStateThatTheJournalLost) {
  RestoreAnOlderCopy();
  t_.Connect("c", "z");
  t_.Join("c", 0, 1, "run-2");
  t_.Pass(3600, {"a", "b", "c"});
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_FALSE(t_.Got<JoinRefused>("a"));
  for (const char* agent : {"a", "c"}) {
    EXPECT_THAT(t_.Got<GroupWaiting>(agent)->reason,
                AllOf(HasSubstr("THE STATE DIRECTORY IS AN OLDER COPY: rank 0 "
                                "(agent 'a', site 'x') holds a state"),
                      HasSubstr("steps, of generation 3, and the newest that "
                                "the coordinator's state directory has is 1")));
  }
  // As it says: on the newest one it goes on.
  t_.Restore(right_);
  t_.Connect("a", "x");
  t_.Connect("b", "y");
  for (uint32_t rank : {0, 1}) Return("a", rank, 40, 3);
  t_.Pass(20, {"a", "b"});
  EXPECT_EQ(Newest().number, 4u);
  EXPECT_EQ(Newest().lineage.id, later_);
  EXPECT_EQ(Newest().lineage.committed, 40u);
}

// Nor does a rank of a lineage that is over where the newest state is.
TEST_F(LaterStateTest, AStateThatTheJournalKnowsGoesNotOnBesideALaterOne) {
  RestoreAnOlderCopy();
  Return("b", 2, 7, 1);
  t_.Pass(60, {"a", "b"});
  EXPECT_EQ(Newest().number, 1u);
}

TEST_F(LaterStateTest, ItIsOutOfTheWayWhenItsRanksEnd) {
  RestoreAnOlderCopy();
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "killed by signal 9");
  t_.Join("b", 0, 1, "run-2");
  EXPECT_EQ(Newest().number, 2u);
  EXPECT_FALSE(Newest().donor);
}

// Out of sight it may live.
TEST_F(LaterStateTest, NothingBeginsBesideOneThatIsOutOfSight) {
  RestoreAnOlderCopy();
  t_.Disconnect("a");
  t_.Join("b", 0, 1, "run-2");
  t_.Pass(3600, {"b"});
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_THAT(t_.Got<GroupWaiting>("b")->reason,
              HasSubstr("rank 0 (agent 'a', site 'x') may hold"));
}

// It is a generation after all that anybody has seen, so they are known to be
// of an earlier one.
TEST_F(LaterStateTest, AReplacingLaunchBeginsAfterIt) {
  RestoreAnOlderCopy();
  t_.replace = true;
  t_.Join("b", 0, 1, "run-2");
  t_.replace = false;
  EXPECT_EQ(Newest().number, 4u);
  EXPECT_FALSE(Newest().donor);
  EXPECT_TRUE(t_.Got<JoinRefused>("a")->replaced);
}

// The advice where the newest directory is lost.
TEST_F(LaterStateTest, AnEmptyDirectoryGoesOnFromIt) {
  RestoreAnOlderCopy();
  t_.Restore({});
  t_.Connect("a", "x");
  for (uint32_t rank : {0, 1}) Return("a", rank, 40, 3);
  t_.Join("a", 2, 4);
  t_.Join("a", 3, 4);
  EXPECT_EQ(Newest().number, 4u);
  EXPECT_EQ(Newest().lineage.id, later_);
}

// It went on in the lineage that the copy has, in generations that it lacks:
// others may have come farther in them.
TEST_F(LaterStateTest, NorDoesOneGoOnThatWasInALaterGeneration) {
  for (const uint64_t last : {1, 2}) {
    t_ = TestCluster();
    Start(OnShrink::kContinue);
    t_.Leave("b", 3, "killed by signal 9");
    EndAt("b", {2}, 7);
    for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "rank 3 left", true);
    t_.last_generation = last;
    for (uint32_t rank : {0, 1}) Return("a", rank, 7);
    t_.last_generation = 0;
    t_.Pass(60, {"a", "b"});
    EXPECT_EQ(Newest().number, last == 1 ? 2u : 1u);
  }
}

// Of no coordinator that counts generations.
TEST_F(LaterStateTest, AnIdOfAnotherKindIsOfAnotherJob) {
  Start(OnShrink::kPause);
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "killed by signal 9");
  t_.lineage = {{1, ~uint64_t{0}}, 5};
  t_.Join("a", 0, 4);
  EXPECT_TRUE(t_.Got<JoinRefused>("a")->replaced);
}

}  // namespace
}  // namespace pactrain::coordinator
