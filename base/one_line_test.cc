#include "base/one_line.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

TEST(OneLine, sec_WhatForgesALineIsWrittenOut) {
  const std::vector<std::pair<std::string, std::string>> kCases = {
      {"a\nb", "a\\x0ab"},
      {"a\r\x1b[2Kb", "a\\x0d\\x1b[2Kb"},
      {std::string("a\0b", 3), "a\\x00b"},
      {"\x7f", "\\x7f"},
      {"\xc2\x9b"
       "31m",
       "\\u{009b}31m"},  // C1: CSI.
      {"\xe2\x80\xae"
       "gpj",
       "\\u{202e}gpj"},               // Right to left.
      {"\xe2\x81\xa6", "\\u{2066}"},  // Isolates.
      {"\xe2\x80\x8f", "\\u{200f}"},
      {"\xd8\x9c", "\\u{061c}"},
      {"\xe2\x80\xa8", "\\u{2028}"},  // A line's end.
      {"\xe2\x80\x8b", "\\u{200b}"},  // Not seen.
      {"\xef\xbb\xbf", "\\u{feff}"},
      {"\xf3\xa0\x81\x81", "\\u{e0041}"}};
  for (const auto& [text, line] : kCases) EXPECT_EQ(OneLine(text), line);
}

TEST(OneLine, sec_BytesThatAreNoUtf8AreWrittenOut) {
  const std::vector<std::pair<std::string, std::string>> kCases = {
      {"\x9b"
       "31m",
       "\\x9b31m"},
      {"\xff", "\\xff"},
      {"\xc2", "\\xc2"},
      {"\xc2\n", "\\xc2\\x0a"},
      {"\xc0\x8a", "\\xc0\\x8a"},  // Longer than need be.
      {"\xe0\x80\x8a", "\\xe0\\x80\\x8a"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},  // A surrogate.
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
      {"\xe2\x80", "\\xe2\\x80"}};
  for (const auto& [text, line] : kCases) EXPECT_EQ(OneLine(text), line);
}

TEST(OneLine, OtherTextStays) {
  for (const std::string text :
       {"", "a b ~", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc2\xa0",
        "C:\\x0a", "'<a href=\"x\">'"}) {
    EXPECT_EQ(OneLine(text), text);
  }
}

}  // namespace
}  // namespace pactrain::base
