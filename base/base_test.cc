#include <string>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/mutex.h"
#include "base/repeat_filter.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

// RFC 3720, B.4.
TEST(Crc32cTest, MatchesThePublishedVectors) {
  const std::string zeros(32, '\0');
  const std::string ones(32, '\xff');
  EXPECT_EQ(Crc32c(zeros.data(), zeros.size()), 0x8a9136aau);
  EXPECT_EQ(Crc32c(ones.data(), ones.size()), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c("", 0), 0u);
}

// Bit by bit, as RFC 3720 defines it.
uint32_t SlowCrc32c(const std::vector<uint8_t>& data) {
  uint32_t crc = ~0u;
  for (uint8_t byte : data) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
    }
  }
  return ~crc;
}

TEST(Crc32cTest, EveryLengthIsRight) {
  std::vector<uint8_t> data;
  for (size_t bytes : {1, 7, 8, 767, 768, 769, 6143, 6144, 6151, 8192, 20000}) {
    while (data.size() < bytes) {
      data.push_back(static_cast<uint8_t>(data.size() * 2654435761u >> 13));
    }
    EXPECT_EQ(Crc32c(data.data(), bytes), SlowCrc32c(data)) << bytes;
  }
}

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

}  // namespace
}  // namespace pactrain::base
