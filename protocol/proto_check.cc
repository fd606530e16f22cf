#include "protocol/proto_check.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace pactrain::protocol {
namespace {

void AppendBigEndian(uint64_t value, std::string& out) {
  for (int shift = 56; shift >= 0; shift -= 8) {
    out.push_back(static_cast<char>(value >> shift));
  }
}

uint64_t ReadBigEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

// Bytes of the UTF-8 character at the start of `text`; 0: it is not one.
size_t CharacterBytes(absl::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  size_t bytes = 0;
  uint32_t value = 0, lowest = 0;
  if (at(0) < 0x80) return 1;
  if ((at(0) & 0xE0) == 0xC0) bytes = 2, value = at(0) & 0x1F, lowest = 0x80;
  if ((at(0) & 0xF0) == 0xE0) bytes = 3, value = at(0) & 0x0F, lowest = 0x800;
  if ((at(0) & 0xF8) == 0xF0) bytes = 4, value = at(0) & 0x07, lowest = 0x10000;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
    value = value << 6 | (at(i) & 0x3F);
  }
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  return value < lowest || value > 0x10FFFF || surrogate ? 0 : bytes;
}

}  // namespace

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t low,
                        uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", value, "; ", low, " to ", high, " is allowed"));
}

absl::Status CheckLength(absl::string_view field, absl::string_view text,
                         size_t limit) {
  if (text.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " has ", text.size(), " bytes; at most ", limit, " are allowed"));
}

absl::Status CheckStep(absl::string_view field, uint64_t step) {
  return CheckRange(field, step, 0, uint64_t{1} << 62);
}

absl::Status CheckMeasure(absl::string_view field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", value, "; it must be finite and not negative"));
}

absl::StatusOr<Digest> ReadDigest(absl::string_view field,
                                  absl::string_view bytes, bool required) {
  if (bytes.empty() && !required) return Digest{};
  if (bytes.size() != 16) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", bytes.size(), " bytes; 16 are ",
                     required ? "needed" : "needed, or none"));
  }
  const Digest digest{ReadBigEndian(bytes.substr(0, 8)),
                      ReadBigEndian(bytes.substr(8))};
  if (digest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is all zero, which is no digest"));
  }
  return digest;
}

std::string WriteDigest(const Digest& digest) {
  std::string bytes;
  if (digest.empty()) return bytes;
  AppendBigEndian(digest.hi, bytes);
  AppendBigEndian(digest.lo, bytes);
  return bytes;
}

absl::StatusOr<base::Secret> ReadSecret(absl::string_view field,
                                        absl::string_view bytes) {
  base::Secret secret;
  if (bytes.size() != base::Secret::kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", bytes.size(), " bytes; ",
                     base::Secret::kBytes, " are needed"));
  }
  std::memcpy(secret.bytes.data(), bytes.data(), bytes.size());
  if (secret.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is all zero, which is no key"));
  }
  return secret;
}

std::string WriteText(absl::string_view text, size_t limit) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const size_t taken = bytes == 0 ? 1 : bytes;
    if (out.size() + taken > limit) break;
    if (bytes == 0) {
      out.push_back('?');
    } else {
      out.append(text.data(), bytes);
    }
    text.remove_prefix(taken);
  }
  return out;
}

}  // namespace pactrain::protocol
