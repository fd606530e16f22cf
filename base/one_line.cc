#include "base/one_line.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace pactrain::base {
namespace {

// One character of UTF-8: its code and how many bytes it takes; 0: none begins
// here.
struct Character {
  uint32_t code = 0;
  size_t bytes = 0;
};

Character Read(absl::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<uint8_t>(i < text.size() ? text[i] : 0);
  };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (first < 0xc2 || first > 0xf4) return {};
  uint32_t code = first & (0xffu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return {};
  return {code, bytes};
}

// C0, DEL and C1; what joins, parts or turns text without being seen.
bool IsWrittenOut(uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xad || c == 0x61c ||
         c == 0x180e || (c >= 0x200b && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) ||
         c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) ||
         (c >= 0xe0000 && c <= 0xe007f);
}

}  // namespace

std::string OneLine(absl::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const Character character = Read(text);
    const size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    if (character.bytes == 0 ||
        (character.code < 0x80 && IsWrittenOut(character.code))) {
      absl::StrAppend(
          &line, "\\x",
          absl::Hex(static_cast<uint8_t>(text[0]), absl::kZeroPad2));
    } else if (IsWrittenOut(character.code)) {
      absl::StrAppend(&line, "\\u{", absl::Hex(character.code, absl::kZeroPad4),
                      "}");
    } else {
      line.append(text.data(), bytes);
    }
    text.remove_prefix(bytes);
  }
  return line;
}

}  // namespace pactrain::base
