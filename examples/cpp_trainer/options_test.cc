#include "examples/cpp_trainer/options.h"

#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::example {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

std::optional<Options> Parse(std::vector<const char*> words, int* exit_code) {
  words.insert(words.begin(), "cpp_trainer");
  return ParseOptions(static_cast<int>(words.size()), words.data(), exit_code);
}

TEST(OptionsTest, WhatIsNotGivenHasADefault) {
  int exit_code = 0;
  const auto options = Parse({"--data=x", "--batch=16"}, &exit_code);
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->data, "x");
  EXPECT_EQ(options->batch, 16);
  EXPECT_EQ(options->epochs, 5);
  EXPECT_EQ(options->amount, 0.7);
  EXPECT_EQ(options->rate, 0.05);
}

TEST(OptionsTest, TrackingAndOnsetAreRead) {
  int exit_code = 0;
  const auto options = Parse({"--data=x", "--track", "--activate-at=4",
                              "--pin=TERNARY 7", "--pin-from=8"},
                             &exit_code);
  ASSERT_TRUE(options.has_value());
  EXPECT_TRUE(options->track);
  EXPECT_EQ(options->activate_at, 4u);
  EXPECT_EQ(options->pin, "TERNARY 7");
  EXPECT_EQ(options->pin_from, 8u);
}

TEST(OptionsTest, MistakesAreOneMessageThatNamesTheFlag) {
  const std::string count = " is not a whole number from 1 to 1000000";
  const std::string share = " is not a number of at least 0 and below 1";
  const std::string rate = " is not a number above 0 and up to 1000";
  using Case = std::tuple<std::string, std::string, std::string>;
  for (const auto& [flag, value, allowed] : std::initializer_list<Case>{
           {"epochs", "3x", count},
           {"epochs", "0", count},
           {"epochs", "1e3", count},
           {"batch", "-1", count},
           {"batch", "1.5", count},
           {"amount", "1", share},
           {"amount", "nan", share},
           {"rate", "abc", rate},
           {"rate", "nan", rate},
           {"rate", "0", rate},
       }) {
    const std::string word = "--" + flag + "=" + value;
    int exit_code = 0;
    CaptureStderr();
    EXPECT_FALSE(Parse({"--data=x", word.c_str()}, &exit_code).has_value());
    EXPECT_EQ(GetCapturedStderr(), "cpp_trainer: --" + flag + ": '" + value +
                                       "'" + allowed + "; see --help\n");
    EXPECT_EQ(exit_code, 2) << word;
  }
}

TEST(OptionsTest, UnknownAndMissingFlagsAreNamed) {
  int exit_code = 0;
  CaptureStderr();
  EXPECT_FALSE(Parse({"--data=x", "--rates=1"}, &exit_code).has_value());
  EXPECT_FALSE(Parse({}, &exit_code).has_value());
  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("--rates"));
  EXPECT_THAT(text, HasSubstr("--data is required"));
  EXPECT_EQ(exit_code, 2);
}

TEST(OptionsTest, HelpNamesEveryFlagWithItsDefaultAndEndsWell) {
  int exit_code = 1;
  CaptureStdout();
  EXPECT_FALSE(Parse({"--help"}, &exit_code).has_value());
  const std::string help = GetCapturedStdout();
  for (const char* part : {"--data", "--epochs", "--batch", "32", "--amount",
                           "0.7", "--rate", "0.05", "Learning rate"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  EXPECT_EQ(exit_code, 0);
}

}  // namespace
}  // namespace pactrain::example
