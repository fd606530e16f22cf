#include "base/tls/secrecy.h"

#include <openssl/crypto.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/tls/tls_choice.h"

namespace pactrain::base {
namespace {

// A few keys at a time; of 16 bytes at least.
constexpr size_t kSecureBytes = 64 << 10;
constexpr size_t kSecureLeast = 16;

}  // namespace

std::string HideSecrets() {
  std::string refused;
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
    refused = std::string(
                  "processes of this user can read this one's keys: "
                  "PR_SET_DUMPABLE: ") +
              std::strerror(errno);
  }
  // 2: it is in no dump, but may be swapped (RLIMIT_MEMLOCK).
  if (CRYPTO_secure_malloc_init(kSecureBytes, kSecureLeast) == 0) {
    refused += (refused.empty() ? "" : "; ") +
               std::string("private keys are in memory that a dump would hold");
  }
  return refused;
}

void ForgetJobKeyVariable() {
  char* const value = std::getenv(kJobKeyVariable);
  if (value == nullptr) return;
  OPENSSL_cleanse(value, std::strlen(value));
  unsetenv(kJobKeyVariable);
}

}  // namespace pactrain::base
