#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/core/test_cluster.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

class ExpelTest : public ::testing::Test {
 protected:
  ExpelTest() { cluster_.FormFour(); }
  absl::Status Evict(const std::string& who) {
    auto effects = cluster_.state().Evict(who, "ann", cluster_.now());
    if (effects.ok()) cluster_.Act(std::move(effects->effects));
    return effects.status();
  }
  absl::Status Readmit(const std::string& who) {
    auto effects = cluster_.state().Readmit(who);
    if (effects.ok()) cluster_.Act(*std::move(effects));
    return effects.status();
  }

  TestCluster cluster_;
};

TEST_F(ExpelTest, sec_AnEvictedAgentsRanksLeaveAtOnce) {
  cluster_.Clear();
  ASSERT_OK(Evict("agent/b"));
  const auto ended = cluster_.Got<protocol::EndGeneration>("a");
  ASSERT_TRUE(ended);
  EXPECT_THAT(ended->reason, HasSubstr("evicted by ann"));
  EXPECT_THAT(cluster_.Closed("b"),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("by ann")));
  EXPECT_OK(cluster_.Closed("a"));
  EXPECT_EQ(cluster_.Snapshot().phase, GroupPhase::kFailed);
  // Nobody waits for them, though nobody has heard of them again.
  EXPECT_EQ(cluster_.journal().denied.at("agent/b").by, "ann");
}

TEST_F(ExpelTest, sec_AnAgentThatIsAwayIsOutAsWell) {
  cluster_.Disconnect("b");
  cluster_.Clear();
  ASSERT_OK(Evict("agent/*b"));
  EXPECT_TRUE(cluster_.Got<protocol::EndGeneration>("a"));
}

TEST_F(ExpelTest, OthersGoOn) {
  cluster_.Clear();
  ASSERT_OK(Evict("agent/c"));
  ASSERT_OK(Evict("operator/b"));
  EXPECT_FALSE(cluster_.Got<protocol::EndGeneration>("a"));
  EXPECT_EQ(cluster_.Snapshot().phase, GroupPhase::kRunning);
}

TEST_F(ExpelTest, sec_ItIsDurableAndCanBeTakenBack) {
  ASSERT_OK(Evict("agent/b"));
  cluster_.RestartCoordinator();
  EXPECT_TRUE(cluster_.state().denied().contains("agent/b"));
  EXPECT_THAT(Readmit("agent/a"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("are: agent/b")));
  ASSERT_OK(Readmit("agent/b"));
  cluster_.RestartCoordinator();
  EXPECT_TRUE(cluster_.state().denied().empty());
  EXPECT_THAT(Readmit("agent/b"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("are: nobody")));
}

TEST_F(ExpelTest, WhoIsMeantIsSaid) {
  const auto evicted =
      cluster_.state().Evict("agent/*b", "ann", cluster_.now());
  ASSERT_OK(evicted);
  EXPECT_THAT(evicted->meant, ::testing::ElementsAre("agent/b"));
  EXPECT_THAT(evicted->known, ::testing::Contains("agent/a"));
}

TEST_F(ExpelTest, ANumberIsTheSameHoweverItIsWritten) {
  ASSERT_OK(Evict("serial/05fA"));
  ASSERT_OK(Evict("key/AABBCCDDEEFF0011"));
  EXPECT_OK(Readmit("serial/5fa"));
  EXPECT_OK(Readmit("key/aabbccddeeff0011"));
  // As an older coordinator kept it.
  Effects old;
  old.records.push_back(IdentityDenied{"serial/0a", "ann", ""});
  cluster_.Act(std::move(old));
  cluster_.RestartCoordinator();
  EXPECT_OK(Readmit("serial/A"));
}

TEST_F(ExpelTest, ItNeedsTheJournalAndWordsThatMeanSomebody) {
  EXPECT_THAT(Evict("b"), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("'b' means nobody")));
  cluster_.state().SetReadOnly(true);
  EXPECT_THAT(Evict("agent/b"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("journal")));
  EXPECT_EQ(cluster_.Snapshot().phase, GroupPhase::kRunning);
}

TEST_F(ExpelTest, sec_limits_Evicted) {
  for (size_t i = 0; i < CoordinatorState::kMaxDenied; ++i) {
    ASSERT_OK(Evict(absl::StrCat("agent/n", i)));
  }
  EXPECT_OK(Evict("agent/n0"));
  EXPECT_THAT(Evict("agent/b"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1000 are evicted already")));
}

}  // namespace
}  // namespace pactrain::coordinator
