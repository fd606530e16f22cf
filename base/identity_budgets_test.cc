#include "base/identity_budgets.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"

namespace pactrain::base {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kStart = absl::Seconds(100);

IdentityBudgets Make() {
  return IdentityBudgets({.of = "calls",
                          .at_once = 3,
                          .per_second = 2,
                          .shut_out = absl::Seconds(10)});
}

TEST(IdentityBudgets, GivesAsManyTurnsAsAreStored) {
  IdentityBudgets budgets = Make();
  for (int i = 0; i < 3; ++i) EXPECT_OK(budgets.Take("a", kStart));
  EXPECT_THAT(budgets.Take("a", kStart),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("more than 3 calls at once and 2 a second")));
}

TEST(IdentityBudgets, SaysLargeLimitsInFull) {
  IdentityBudgets budgets({.of = "bytes",
                           .at_once = 16 << 20,
                           .per_second = 2 << 20,
                           .shut_out = absl::Seconds(10)});
  EXPECT_THAT(budgets.Take("a", kStart, nullptr, 17 << 20).message(),
              HasSubstr("more than 16777216 bytes at once and 2097152 a "
                        "second after them"));
}

TEST(IdentityBudgets, MayTakeManyTurnsOrNone) {
  IdentityBudgets budgets = Make();
  EXPECT_OK(budgets.Take("a", kStart, nullptr, 2));
  EXPECT_OK(budgets.Take("a", kStart, nullptr, 0));
  bool news = false;
  EXPECT_FALSE(budgets.Take("a", kStart, &news, 2).ok());
  EXPECT_TRUE(news);
  // One would be left, for who is not shut out.
  EXPECT_FALSE(budgets.Take("a", kStart, &news, 0).ok());
  EXPECT_FALSE(news);
}

TEST(IdentityBudgets, OneIdentityTakesNothingFromAnother) {
  IdentityBudgets budgets = Make();
  for (int i = 0; i < 9; ++i) budgets.Take("a", kStart).IgnoreError();
  EXPECT_OK(budgets.Take("b", kStart));
}

TEST(IdentityBudgets, TheStoreFillsWithTimeAndNoFurther) {
  IdentityBudgets budgets = Make();
  for (int i = 0; i < 3; ++i) EXPECT_OK(budgets.Take("a", kStart));
  EXPECT_OK(budgets.Take("a", kStart + absl::Milliseconds(500)));
  const absl::Duration later = kStart + absl::Hours(1);
  for (int i = 0; i < 3; ++i) EXPECT_OK(budgets.Take("a", later));
  EXPECT_FALSE(budgets.Take("a", later).ok());
}

TEST(IdentityBudgets, WhoAsksTooMuchIsShutOutForAWhileAndIsNewsOnce) {
  IdentityBudgets budgets = Make();
  for (int i = 0; i < 3; ++i) EXPECT_OK(budgets.Take("a", kStart));
  bool news = false;
  EXPECT_FALSE(budgets.Take("a", kStart, &news).ok());
  EXPECT_TRUE(news);
  EXPECT_FALSE(budgets.Take("a", kStart + absl::Seconds(9), &news).ok());
  EXPECT_FALSE(news);
  EXPECT_OK(budgets.Take("a", kStart + absl::Seconds(10), &news));
  EXPECT_FALSE(news);
}

TEST(IdentityBudgets, NewNamesDoNotPushOutWhoIsShutOut) {
  IdentityBudgets budgets = Make();
  for (int i = 0; i < 4; ++i) budgets.Take("a", kStart).IgnoreError();
  for (size_t i = 0; i < 2 * IdentityBudgets::kMaxIdentities; ++i) {
    EXPECT_OK(budgets.Take(absl::StrCat("name-", i), kStart));
  }
  EXPECT_LE(budgets.size(), IdentityBudgets::kMaxIdentities);
  EXPECT_FALSE(budgets.Take("a", kStart).ok());
}

TEST(IdentityBudgets, WhoIsFullAgainIsForgotten) {
  IdentityBudgets budgets = Make();
  for (size_t i = 0; i < IdentityBudgets::kMaxIdentities; ++i) {
    EXPECT_OK(budgets.Take(absl::StrCat("name-", i), kStart));
  }
  EXPECT_OK(budgets.Take("a", kStart + absl::Seconds(1)));
  EXPECT_EQ(budgets.size(), 1u);
}

TEST(IdentityBudgets, WhereAllAreShutOutNobodyNewGetsIn) {
  IdentityBudgets budgets({.of = "calls",
                           .at_once = 1,
                           .per_second = 1,
                           .shut_out = absl::Seconds(10)});
  for (size_t i = 0; i < IdentityBudgets::kMaxIdentities; ++i) {
    const std::string name = absl::StrCat("name-", i);
    EXPECT_OK(budgets.Take(name, kStart));
    EXPECT_FALSE(budgets.Take(name, kStart).ok());
  }
  EXPECT_THAT(budgets.Take("a", kStart),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("identities are shut out")));
}

}  // namespace
}  // namespace pactrain::base
