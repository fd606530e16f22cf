// The certificate, key and CA of this program: PEM files that are named at
// start and may be rewritten while it runs.
//
// What is made of them speaks TLS 1.3 only, in both directions, with a
// certificate of its own, and takes nobody whose certificate is not the CA's.
// Who that is, the caller asks by UrisOf().
//
// Pure but for reading files. Thread-compatible.
#ifndef PACTRAIN_BASE_TLS_TLS_FILES_H_
#define PACTRAIN_BASE_TLS_TLS_FILES_H_

#include <openssl/ssl.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/certificate_life.h"

namespace pactrain::base {

struct TlsFiles {
  std::string cert;  // Own certificate, then those between it and the CA's.
  std::string key;
  std::string ca;  // One or more CAs.
  // Of files in memory (JobCertificates): they last as long as this.
  std::shared_ptr<const void> keeper = nullptr;

  // Otherwise TLS is off.
  bool given() const { return !cert.empty(); }
};

// What messages call the settings: where their values came from.
struct TlsNames {
  std::string cert = "--tls-cert";
  std::string key = "--tls-key";
  std::string ca = "--tls-ca";
  std::string job_key_file = "--job-key-file";
};

using TlsContext = std::shared_ptr<SSL_CTX>;

// InvalidArgument: `file`, the value of the setting `name`, cannot be read, may
// be used by others than its owner and group, or WhyNotGuarded().
absl::Status CheckSecretFile(const std::string& name, const std::string& file);

// REQUIRES: files.given().
// InvalidArgument: begins with the setting whose file cannot be read, is no PEM
// of its kind, is a key that others may read or that is not the certificate's,
// or a certificate that is expired, not valid yet or not the CA's.
absl::StatusOr<TlsContext> MakeTlsContext(const TlsFiles& files,
                                          const TlsNames& names);

// What can be checked at start: all three are given or none, and what
// MakeTlsContext() checks. Returns the URIs of the own certificate; none where
// TLS is off.
absl::StatusOr<std::vector<std::string>> CheckTlsFiles(const TlsFiles& files,
                                                       const TlsNames& names);

// Of a context of MakeTlsContext().
CertificateLives LivesOf(const TlsContext& context);
// The keys of its CAs, as CertificateFacts::anchor.
std::set<std::string> AnchorsOf(const TlsContext& context);

// How long these files hold. REQUIRES: not all are empty.
// Errors: as CheckTlsFiles().
absl::StatusOr<CertificateLives> LivesOf(const TlsFiles& files,
                                         const TlsNames& names);

// The URIs among a certificate's alternative names. Null: none.
std::vector<std::string> UrisOf(const X509* certificate);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_TLS_FILES_H_
