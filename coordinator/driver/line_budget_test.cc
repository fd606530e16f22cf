#include "coordinator/driver/line_budget.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using Word = LineBudget::Word;

constexpr absl::Duration kNow = absl::Seconds(7);
constexpr uint64_t kOfOneJob = LineBudget::kMaxLinesOfOne / 2;

protocol::Caller Agent(int number) {
  return {absl::StrCat("spiffe://pactrain/agent/a", number), "7F"};
}

TEST(LineBudgetTest, sec_limits_LinesThatOneSourceCauses) {
  LineBudget budget;
  for (uint64_t i = 0; i < kOfOneJob; ++i) {
    ASSERT_EQ(budget.Take(Agent(1), "a", 1, kNow), Word::kKept);
  }
  EXPECT_EQ(budget.RoomOf(Agent(1), "a"), 0u);
  EXPECT_EQ(budget.Take(Agent(1), "a", 1, kNow), Word::kFirstLeftOut);
  EXPECT_EQ(budget.Take(Agent(1), "a", 3, kNow), Word::kLeftOut);
  EXPECT_EQ(budget.RoomOf(Agent(2), "a"), LineBudget::kMaxLinesOfOne);
  EXPECT_EQ(budget.Take(Agent(2), "a", 1, kNow), Word::kKept);
}

TEST(LineBudgetTest, sec_limits_EachJobTakesHalfOfWhatOthersHaveLeft) {
  LineBudget budget;
  int number = 0;
  const auto take = [&] {
    const std::string job = absl::StrCat("job-", ++number);
    uint64_t kept = 0;
    while (budget.Take(Agent(1), job, 1, kNow) == Word::kKept) ++kept;
    return kept;
  };
  for (const uint64_t most : {500, 250, 125, 63, 31, 16, 8}) {
    EXPECT_EQ(take(), most);
  }
  // A few in any case, so that none is hidden behind others.
  while (number < static_cast<int>(LineBudget::kMaxJobsOfOne)) {
    EXPECT_EQ(take(), LineBudget::kLinesOfAnyJob);
  }
  EXPECT_EQ(take(), LineBudget::kLinesOfAnyJob);
  EXPECT_EQ(take(), 0u);  // All others are one.
  // What was left out is told of each.
  const auto over = budget.TakeOver(kNow + LineBudget::kTime);
  EXPECT_EQ(over.size(), LineBudget::kMaxJobsOfOne + 1);
}

TEST(LineBudgetTest, WhatIsToldAtOnceIsKeptAsAWhole) {
  LineBudget budget;
  budget.Take(Agent(1), "a", kOfOneJob - 1, kNow);
  EXPECT_EQ(budget.Take(Agent(1), "a", 65, kNow), Word::kKept);
  EXPECT_EQ(budget.Take(Agent(1), "a", 1, kNow), Word::kFirstLeftOut);
}

TEST(LineBudgetTest, TheTenMinutesEndWithTheCountAndBeginAnew) {
  LineBudget budget;
  budget.Take(Agent(1), "a", kOfOneJob, kNow);
  budget.Take(Agent(2), "a", 1, kNow);
  const absl::Duration later = kNow + absl::Minutes(9);
  budget.Take(Agent(1), "a", 2, later);
  budget.Take(Agent(1), "a", 3, later);
  const absl::Duration end = kNow + LineBudget::kTime;
  EXPECT_TRUE(budget.TakeOver(end - absl::Nanoseconds(1)).empty());
  const auto over = budget.TakeOver(end);
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over[0].caller.who, Agent(1).who);
  EXPECT_EQ(over[0].job, "a");
  EXPECT_EQ(over[0].lines, 5u);
  EXPECT_EQ(over[0].since, later);
  EXPECT_TRUE(budget.TakeOver(end).empty());
  EXPECT_EQ(budget.Take(Agent(1), "a", 1, end), Word::kKept);
}

TEST(LineBudgetTest, sec_limits_SourcesOfLinesBeyondTheLimitShareOne) {
  LineBudget budget;
  int number = 0;
  for (size_t i = 0; i < LineBudget::kMaxSources; ++i) {
    budget.Take(Agent(++number), "a", 1, kNow);
  }
  for (uint64_t i = 0; i < kOfOneJob; ++i) {
    ASSERT_EQ(budget.Take(Agent(++number), "a", 1, kNow), Word::kKept);
  }
  EXPECT_EQ(budget.Take(Agent(++number), "a", 1, kNow), Word::kFirstLeftOut);
  EXPECT_EQ(budget.Take(Agent(1), "a", 1, kNow), Word::kKept);
}

TEST(LineBudgetTest, sec_limits_NamesThatOneJobKeyMakesAreOneSourceOfLines) {
  LineBudget budget;
  const auto agent = [](int number) -> protocol::Caller {
    return {absl::StrCat("spiffe://vision.job.pactrain/agent/n", number,
                         "..vision"),
            "key/8c1e00112233aabb"};
  };
  budget.Take(agent(1), "a", kOfOneJob, kNow);
  EXPECT_EQ(budget.Take(agent(2), "a", 1, kNow), Word::kFirstLeftOut);
}

}  // namespace
}  // namespace pactrain::coordinator
