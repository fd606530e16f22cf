// A chain of hashes: each covers a line and the hash of the line before, so no
// line can be changed, taken out or put in between without changing all after.
#ifndef PACTRAIN_BASE_TLS_CHAIN_HASH_H_
#define PACTRAIN_BASE_TLS_CHAIN_HASH_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace pactrain::base {

// 32 bytes: SHA-256 of `before` and the fields, each with its length before it,
// so that no text can pass from one field to the next.
std::string ChainHash(absl::string_view before,
                      const std::vector<std::string>& fields);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_CHAIN_HASH_H_
