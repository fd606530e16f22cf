#include "coordinator/driver/caller_budgets.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kNow = absl::Seconds(7);
// Of one job, on one node: all that one agent may have.
constexpr uint64_t kNode =
    uint64_t{protocol::kMaxTrainersPerAgent} * protocol::kMaxModels;

protocol::Caller Bound(int number) {
  return {
      absl::StrCat("spiffe://vision.job.pactrain/agent/n", number, "..vision"),
      "key/8c1e00112233aabb"};
}

TEST(CallerBudgetsTest, sec_limits_JoinsOfOneIdentity) {
  CallerBudgets budgets;
  const protocol::Caller agent = {"spiffe://pactrain/agent/a", "7F"};
  EXPECT_OK(budgets.TakeJoins(agent, protocol::kMaxJoinsAtOnce, kNow));
  EXPECT_THAT(budgets.TakeJoins(agent, 1, kNow),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("spiffe://pactrain/agent/a brings more than "
                                 "4096 new ranks at once and 64 a second "
                                 "after them, as many as one identity may "
                                 "have; it is shut out for 1m")));
  EXPECT_OK(budgets.TakeJoins(agent, 0, kNow));  // Votes, and who leaves.
  EXPECT_OK(budgets.TakeJoins({"spiffe://pactrain/agent/b", "8F"}, 1, kNow));
  // The whole node comes back, and no more than a minute's.
  const absl::Duration later = kNow + absl::Minutes(1);
  EXPECT_OK(budgets.TakeJoins(agent, kNode, later));
  EXPECT_OK(budgets.TakeJoins(agent, 60 * protocol::kMaxJoinsPerSecond - kNode,
                              later));
  EXPECT_FALSE(budgets.TakeJoins(agent, 1, later).ok());
}

TEST(CallerBudgetsTest, sec_limits_JoinsOfAllNamesOfAJobKey) {
  CallerBudgets budgets;
  const int agents = protocol::kIdentitiesOfAJobKey;
  for (int i = 0; i < agents; ++i) {
    EXPECT_OK(budgets.TakeJoins(Bound(i), protocol::kMaxJoinsAtOnce, kNow));
  }
  EXPECT_THAT(budgets.TakeJoins(Bound(agents), 1, kNow),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("as many as all of one job key may have")));
  // The largest job comes back.
  const absl::Duration later = kNow + absl::Minutes(1);
  constexpr int kNodes = protocol::kMaxRanks / protocol::kMaxTrainersPerAgent;
  for (int i = 0; i < kNodes; ++i) {
    EXPECT_OK(budgets.TakeJoins(Bound(i), kNode, later)) << i;
  }
}

TEST(CallerBudgetsTest, PlainTextHasNoBudgetOfJoins) {
  CallerBudgets budgets;
  for (int i = 0; i < 100; ++i) {
    EXPECT_OK(budgets.TakeJoins({}, protocol::kMaxJoinsAtOnce, kNow));
  }
}

TEST(CallerBudgetsTest, sec_limits_ChangesOfOneOperator) {
  CallerBudgets budgets;
  const protocol::Caller bob = {"spiffe://pactrain/operator/bob", "7F"};
  for (int i = 0; i < protocol::kMaxChangesAtOnce; ++i) {
    ASSERT_OK(budgets.TakeChange(bob, kNow));
  }
  EXPECT_THAT(budgets.TakeChange(bob, kNow),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("spiffe://pactrain/operator/bob makes more "
                                 "than 500 changes at once and 1 a second "
                                 "after them")));
  EXPECT_OK(budgets.TakeChange({"spiffe://pactrain/operator/eve", ""}, kNow));
  const absl::Duration later = kNow + absl::Seconds(10);
  for (int i = 0; i < 10 * protocol::kMaxChangesPerSecond; ++i) {
    EXPECT_OK(budgets.TakeChange(bob, later));
  }
  EXPECT_FALSE(budgets.TakeChange(bob, later).ok());
}

}  // namespace
}  // namespace pactrain::coordinator
