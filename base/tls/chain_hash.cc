#include "base/tls/chain_hash.h"

#include <openssl/sha.h>

#include "base/tls/fields.h"

namespace pactrain::base {

std::string ChainHash(absl::string_view before,
                      const std::vector<std::string>& fields) {
  std::string bytes;
  AppendField(before, bytes);
  for (const std::string& field : fields) AppendField(field, bytes);
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         hash);
  return std::string(reinterpret_cast<const char*>(hash), sizeof hash);
}

}  // namespace pactrain::base
