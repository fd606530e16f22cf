#include "base/tls/chain_hash.h"

#include <openssl/sha.h>

#include <cstdint>

namespace pactrain::base {
namespace {

void Append(absl::string_view text, std::string& bytes) {
  const uint64_t size = text.size();
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(size >> shift));
  }
  bytes.append(text.data(), text.size());
}

}  // namespace

std::string ChainHash(absl::string_view before,
                      const std::vector<std::string>& fields) {
  std::string bytes;
  Append(before, bytes);
  for (const std::string& field : fields) Append(field, bytes);
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         hash);
  return std::string(reinterpret_cast<const char*>(hash), sizeof hash);
}

}  // namespace pactrain::base
