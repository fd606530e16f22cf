#include <string>

#include "base/check.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/mutex.h"
#include "base/repeat_filter.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

TEST(DigestTest, TextFormRoundTrips) {
  const Digest d = DigestOf("pactrain");
  EXPECT_EQ(ParseDigest(d.ToString()), d);
  EXPECT_EQ(d.Short(), d.ToString().substr(0, 8));
}

TEST(DigestTest, ParseRefusesWrongLengthAndLetters) {
  EXPECT_FALSE(ParseDigest("").has_value());
  EXPECT_FALSE(ParseDigest(std::string(31, '0')).has_value());
  EXPECT_FALSE(ParseDigest(std::string(31, '0') + "g").has_value());
}

TEST(DigestTest, FieldBordersCount) {
  EXPECT_NE(DigestBuilder().Add("ab").Add("c").Build(),
            DigestBuilder().Add("a").Add("bc").Build());
}

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError("odd");
  return x / 2;
}

absl::StatusOr<int> Quarter(int x) {
  ASSIGN_OR_RETURN(const int half, Half(x));
  RETURN_IF_ERROR(Half(half).status());
  return half / 2;
}

TEST(StatusMacrosTest, ErrorsReturnEarly) {
  ASSERT_OK_AND_ASSIGN(const int two, Quarter(8));
  EXPECT_EQ(two, 2);
  EXPECT_THAT(Quarter(6), StatusIs(absl::StatusCode::kInvalidArgument, "odd"));
}

TEST(CheckDeathTest, AFailedCheckNamesTheCondition) {
  EXPECT_DEATH(PT_CHECK(1 == 2), "1 == 2");
}

TEST(RepeatFilter, ATextIsNewsOnceInAnInterval) {
  RepeatFilter filter(absl::Seconds(60));
  EXPECT_TRUE(filter.IsNews("a", absl::Seconds(1)));
  EXPECT_FALSE(filter.IsNews("a", absl::Seconds(60)));
  EXPECT_TRUE(filter.IsNews("b", absl::Seconds(60)));
  EXPECT_TRUE(filter.IsNews("a", absl::Seconds(61)));
}

TEST(RepeatFilter, sec_MadeUpTextsAreNewsUpToALimit) {
  RepeatFilter filter(absl::Seconds(60));
  size_t news = 0;
  for (int i = 0; i < 1000; ++i) {
    news += filter.IsNews(std::to_string(i), absl::Seconds(1));
  }
  EXPECT_EQ(news, RepeatFilter::kMaxTexts);
  EXPECT_TRUE(filter.IsNews("later", absl::Seconds(61)));
}

TEST(RepeatFilter, sec_OneSourceDrownsNoOther) {
  using Word = RepeatFilter::Word;
  RepeatFilter filter(absl::Seconds(60));
  const auto flood = [&](const std::string& source) {
    size_t news = 0, first = 0;
    for (int i = 0; i < 1000; ++i) {
      const Word word =
          filter.Hear(std::to_string(i), absl::Seconds(1), source);
      news += word == Word::kNews;
      first += word == Word::kFirstTooMany;
    }
    EXPECT_EQ(first, 1u);  // That more are left out is said, once.
    return news;
  };
  flood("");  // Strangers.
  EXPECT_EQ(flood("ann"), RepeatFilter::kMaxTextsOfOne);
  EXPECT_TRUE(filter.IsNews("x", absl::Seconds(1), "bob"));
  // Nor do many.
  for (size_t i = 0; i < 1000; ++i) {
    filter.Hear(std::to_string(i), absl::Seconds(1), std::to_string(i));
  }
  EXPECT_TRUE(filter.IsNews("y", absl::Seconds(1), "bob"));
  EXPECT_EQ(filter.Hear("y", absl::Seconds(1), "late"), Word::kTooMany);
  EXPECT_TRUE(filter.IsNews("y", absl::Seconds(61), "late"));
}

}  // namespace
}  // namespace pactrain::base
