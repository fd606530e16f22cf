// The part of JSON that a rank's state is written in (state_codec.h): null,
// true, false, whole numbers, strings and arrays. Objects and fractions are
// not among them, so that a whole JSON library is not needed.
#ifndef PACTRAIN_TRAINER_CPP_JSON_H_
#define PACTRAIN_TRAINER_CPP_JSON_H_

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/cpp/errors.h"

namespace pactrain::internal {

struct Json {
  using Array = std::vector<Json>;
  std::variant<std::nullptr_t, bool, int64_t, std::string, Array> value;
};

// Reads one text. Every read is bounded by it, and nesting by kMaxDepth.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  // InvalidArgument: it is not such a text; says where.
  Json Read() {
    Json value = ReadValue(0);
    SkipSpace();
    if (at_ != text_.size()) Fail("something after the end");
    return value;
  }

 private:
  // A state has at most 64 levels, of two arrays each.
  static constexpr int kMaxDepth = 140;

  [[noreturn]] void Fail(const std::string& what) const {
    throw InvalidArgument("its text has " + what + " at byte " +
                          std::to_string(at_));
  }

  void SkipSpace() {
    const size_t next = text_.find_first_not_of(" \t\r\n", at_);
    at_ = next == std::string_view::npos ? text_.size() : next;
  }

  bool Take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  Json ReadValue(int depth) {
    SkipSpace();
    if (Take("null")) return {nullptr};
    if (Take("true")) return {true};
    if (Take("false")) return {false};
    if (Take("\"")) return {ReadString()};
    if (Take("[")) return {ReadArray(depth + 1)};
    return {ReadNumber()};
  }

  Json::Array ReadArray(int depth) {
    if (depth > kMaxDepth) Fail("too many levels");
    Json::Array items;
    SkipSpace();
    if (Take("]")) return items;
    while (true) {
      items.push_back(ReadValue(depth));
      SkipSpace();
      if (Take("]")) return items;
      if (!Take(",")) Fail("no ',' or ']'");
    }
  }

  int64_t ReadNumber() {
    int64_t number = 0;
    const char* first = text_.data() + at_;
    const auto [end, error] =
        std::from_chars(first, text_.data() + text_.size(), number);
    if (error == std::errc::result_out_of_range) Fail("a number over 64 bits");
    if (error != std::errc()) Fail("no value");
    at_ += static_cast<size_t>(end - first);
    return number;
  }

  std::string ReadString() {
    std::string text;
    while (true) {
      if (at_ == text_.size()) Fail("no end of a string");
      const char c = text_[at_++];
      if (c == '"') return text;
      if (static_cast<unsigned char>(c) < 0x20) Fail("a control character");
      if (c == '\\') {
        ReadEscape(text);
      } else {
        text.push_back(c);
      }
    }
  }

  void ReadEscape(std::string& text) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (Take("u")) return AppendUtf8(ReadCodePoint(), text);
    const size_t letter =
        at_ < text_.size() ? kLetters.find(text_[at_]) : std::string_view::npos;
    if (letter == std::string_view::npos) Fail("an unknown escape");
    ++at_;
    text.push_back(kMeanings[letter]);
  }

  uint32_t ReadCodePoint() {
    const uint32_t first = ReadHex4();
    if (first < 0xd800 || first > 0xdfff) return first;
    if (first > 0xdbff || !Take("\\u")) Fail("half a character");
    const uint32_t second = ReadHex4();
    if (second < 0xdc00 || second > 0xdfff) Fail("half a character");
    return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
  }

  uint32_t ReadHex4() {
    uint32_t value = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const char* last = digits.data() + digits.size();
    const auto [end, error] = std::from_chars(digits.data(), last, value, 16);
    if (digits.size() != 4 || error != std::errc() || end != last) {
      Fail("no four hexadecimal digits");
    }
    at_ += 4;
    return value;
  }

  static void AppendUtf8(uint32_t point, std::string& text) {
    const auto put = [&](uint32_t byte) {
      text.push_back(static_cast<char>(byte));
    };
    const auto rest = [&](int shift) { put(0x80 | (point >> shift & 0x3f)); };
    if (point < 0x80) return put(point);
    if (point < 0x800) {
      put(0xc0 | point >> 6);
    } else if (point < 0x10000) {
      put(0xe0 | point >> 12);
      rest(6);
    } else {
      put(0xf0 | point >> 18);
      rest(12);
      rest(6);
    }
    rest(0);
  }

  std::string_view text_;
  size_t at_ = 0;
};

// A string in quotes. UTF-8 stays as it is.
inline std::string JsonString(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (byte < 0x20) {
      quoted += "\\u00";
      quoted += {kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + '"';
}

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_JSON_H_
