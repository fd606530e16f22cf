#include "coordinator/page/json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace pactrain::coordinator {
namespace {

// Bytes of the UTF-8 character at the front of `text`; 0: it is none.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  const size_t length = first < 0x80    ? 1
                        : first < 0xc2  ? 0
                        : first < 0xe0  ? 2
                        : first < 0xf0  ? 3
                        : first <= 0xf4 ? 4
                                        : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Too long a form, a surrogate, or above U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

bool IsEscaped(char c) {
  return static_cast<uint8_t>(c) < 0x20 || c == 0x7f || c == '"' || c == '\\' ||
         c == '<' || c == '>' || c == '&' || c == '\'';
}

}  // namespace

void JsonWriter::Separate() {
  if (text_.empty()) return;
  const char last = text_.back();
  if (last != '{' && last != '[' && last != ':') text_ += ',';
}

JsonWriter& JsonWriter::Open(char open, char close) {
  Separate();
  text_ += open;
  ends_.push_back(close);
  return *this;
}

JsonWriter& JsonWriter::End() {
  PT_CHECK(!ends_.empty());
  text_ += ends_.back();
  ends_.pop_back();
  return *this;
}

JsonWriter& JsonWriter::Key(absl::string_view key) {
  Text(key);
  text_ += ':';
  return *this;
}

JsonWriter& JsonWriter::Text(absl::string_view text, size_t most) {
  Separate();
  text_ += '"';
  size_t taken = 0;
  while (taken < text.size()) {
    const size_t length = CharacterLength(text.substr(taken));
    if (taken + std::max<size_t>(length, 1) > most) {
      text_ += "...";
      break;
    }
    if (length == 0) {
      text_ += "\\ufffd";
      ++taken;
    } else if (length == 1 && IsEscaped(text[taken])) {
      absl::StrAppendFormat(&text_, "\\u%04x", text[taken]);
      ++taken;
    } else {
      absl::StrAppend(&text_, text.substr(taken, length));
      taken += length;
    }
  }
  text_ += '"';
  return *this;
}

JsonWriter& JsonWriter::Number(double number) {
  if (!std::isfinite(number)) return Raw("null");
  return Raw(absl::StrFormat("%.10g", number));
}

JsonWriter& JsonWriter::Number(const std::optional<double>& number) {
  return number ? Number(*number) : Raw("null");
}

JsonWriter& JsonWriter::Raw(absl::string_view json) {
  Separate();
  absl::StrAppend(&text_, json);
  return *this;
}

}  // namespace pactrain::coordinator
