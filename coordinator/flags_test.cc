#include "coordinator/flags.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;

std::optional<Flags> Parse(std::vector<const char*> arguments, int* exit_code) {
  arguments.insert(arguments.begin(), "pactrain-coordinator");
  return ParseFlags(static_cast<int>(arguments.size()), arguments.data(),
                    exit_code);
}

TEST(Flags, DefaultsAreLoopbackAndFp32) {
  int exit_code = -1;
  const auto flags = Parse({}, &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_EQ(flags->listen.ToString(), "127.0.0.1:7070");
  EXPECT_EQ(flags->listen_metrics.ToString(), "127.0.0.1:7071");
  EXPECT_EQ(flags->core.codec, protocol::Codec::kFp32);
  EXPECT_TRUE(flags->core.links.empty());
}

TEST(Flags, LinksSplitAtTheDashOrTheColon) {
  int exit_code = -1;
  const auto flags =
      Parse({"--links", "a-b,b:site-c", "--codec", "bf16"}, &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_THAT(flags->core.links,
              ::testing::ElementsAre(Pair("a", "b"), Pair("b", "site-c")));
  EXPECT_EQ(flags->core.codec, protocol::Codec::kBf16);
}

TEST(Flags, AMistakeIsOneMessageThatNamesIt) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> kCases = {
      {{"--no-such-flag"}, "--no-such-flag"},
      {{"--listen", "0.0.0.0:7070"}, "not loopback"},
      {{"--listen", "nowhere"}, "nowhere"},
      {{"--listen-metrics", "10.0.0.1:1"}, "10.0.0.1:1"},
      {{"--cluster", "No Name"}, "--cluster"},
      {{"--state-dir", ""}, "--state-dir"},
      {{"--codec", "int8"}, "int8"},
      {{"--links", "a-b-c"}, "a-b-c"},
      {{"--links", "a-b,b-a"}, "not one tree"},
      {{"--epoch-steps", "0"}, "epoch_steps"},
      {{"--risk", "bold"}, "bold"},
      {{"--risk", "2"}, "risk_bound is 2"},
      {{"--min-exchange-share", "-1"}, "min_exchange_share"},
      {{"--epoch-steps", "many"}, "many"},
  };
  for (const auto& [arguments, what] : kCases) {
    int exit_code = 0;
    ::testing::internal::CaptureStderr();
    const auto flags = Parse(arguments, &exit_code);
    const std::string message = ::testing::internal::GetCapturedStderr();
    EXPECT_FALSE(flags.has_value()) << what;
    EXPECT_EQ(exit_code, 2) << what;
    EXPECT_THAT(message, HasSubstr(what));
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
  }
}

TEST(Flags, VersionEndsWellWithTheVersion) {
  int exit_code = -1;
  ::testing::internal::CaptureStdout();
  EXPECT_FALSE(Parse({"--version"}, &exit_code).has_value());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("0.1.0"));
  EXPECT_EQ(exit_code, 0);
}

}  // namespace
}  // namespace pactrain::coordinator
