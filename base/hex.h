// Bytes as hexadecimal text.
#ifndef PACTRAIN_BASE_HEX_H_
#define PACTRAIN_BASE_HEX_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/digest.h"

namespace pactrain::base {

// Exactly 32 hex digits, else nothing.
std::optional<Digest> ParseDigest(absl::string_view text);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_HEX_H_
