#include "base/hex.h"

#include <cctype>

#include "absl/strings/numbers.h"

namespace pactrain::base {

std::optional<Digest> ParseDigest(absl::string_view text) {
  if (text.size() != 32) return std::nullopt;
  for (char c : text) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
  }
  Digest d;
  if (!absl::SimpleHexAtoi(text.substr(0, 16), &d.hi) ||
      !absl::SimpleHexAtoi(text.substr(16), &d.lo)) {
    return std::nullopt;
  }
  return d;
}

}  // namespace pactrain::base
