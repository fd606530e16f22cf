#include "base/tls/mac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"
#include "base/tls/fields.h"

namespace pactrain::base {

Secret ComputeMac(const Secret& key, const std::vector<std::string>& fields) {
  std::string bytes;
  for (const std::string& field : fields) AppendField(field, bytes);
  Secret mac;
  unsigned size = 0;
  // Fails only without memory.
  PT_CHECK(HMAC(EVP_sha256(), key.bytes.data(), Secret::kBytes,
                reinterpret_cast<const unsigned char*>(bytes.data()),
                bytes.size(), mac.bytes.data(), &size) != nullptr &&
           size == Secret::kBytes);
  return mac;
}

bool IsSameMac(const Secret& a, const Secret& b) {
  return CRYPTO_memcmp(a.bytes.data(), b.bytes.data(), Secret::kBytes) == 0;
}

}  // namespace pactrain::base
