#include "base/log.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(Log, sec_AnEventIsOneLineWhateverItQuotes) {
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(InitLog("agent", "info"));
  LOG_WARN("its certificate is of '{}'",
           "spiffe://a\n2026-01-01T00:00:00.000 I agent: all is well\xc2\x9b"
           "2K\xe2\x80\xae");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_THAT(text, HasSubstr(" W agent: its certificate is of 'spiffe://a\\x0a"
                              "2026-01-01"));
  EXPECT_THAT(text, EndsWith("all is well\\u{009b}2K\\u{202e}'\n"));
}

}  // namespace
}  // namespace pactrain::base
