#include "trainer/cpp/onset.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain {
namespace {

using ::testing::HasSubstr;

TEST(Onset, SaysNothingByDefaultButTheInterval) {
  const Onset onset = OnsetFrom(0, "", 0);
  EXPECT_EQ(onset.activate_every, kActivateEvery);
  EXPECT_EQ(onset.pin_from, 0u);
  EXPECT_EQ(onset.pin(), 0u);
}

TEST(Onset, ReadsPinsAsPythonDoes) {
  const std::pair<const char*, uint32_t> pins[] = {
      {"FULL", 0x11},           {"FULL bf16", 0x12},
      {"COMPACTED fp32", 0x21}, {"COMPACTED", 0x21},
      {"TERNARY 3", 0x33},      {"TERNARY 7", 0x35},
      {"TERNARY 31", 0x37},     {"TERNARY 15 levels", 0x36}};
  for (const auto& [text, number] : pins) {
    EXPECT_EQ(OnsetFrom(0, text, 0).pin(), number) << text;
  }
  EXPECT_EQ(OnsetFrom(0, "FULL", 0).pin_from, 1u);
  EXPECT_EQ(OnsetFrom(8, "FULL", 8).activate_every, 8u);
}

void ExpectRefused(uint32_t activate_at, const std::string& pin,
                   uint32_t pin_from, const std::string& text) {
  try {
    OnsetFrom(activate_at, pin, pin_from);
    FAIL() << text;
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(Onset, WhatDoesNotGoTogetherIsRefusedInWords) {
  ExpectRefused(0, "TERNARY", 0, "pin is 'TERNARY'; allowed are");
  ExpectRefused(0, "FULL 7", 0, "pin is 'FULL 7'");
  ExpectRefused(0, "TERNARY fp32", 0, "pin is 'TERNARY fp32'");
  ExpectRefused(0, "", 5, "pin_from is 5, and pin says nothing");
  ExpectRefused(8, "FULL", 4, "pin_from is 4, before activate_at, 8");
  ExpectRefused(1'000'000'001, "", 0, "activate_at is 1000000001");
}

}  // namespace
}  // namespace pactrain
