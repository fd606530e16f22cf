// What one certificate says of itself, for those who decide by it.
//
// Pure functions.
#ifndef PACTRAIN_BASE_TLS_CERTIFICATE_FACTS_H_
#define PACTRAIN_BASE_TLS_CERTIFICATE_FACTS_H_

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace pactrain::base {

struct CertificateFacts {
  std::vector<std::string> uris;  // Among its alternative names.
  std::string serial;             // In hex, upper case.
  std::string key;     // SHA-256 of its public key (SPKI), in hex, lower case.
  std::string issuer;  // The id of the job key that made it; empty: none did.
  std::string ca;      // NameHashOf() of who signed it.
  absl::Time until;    // When its life ends, or that of one above it.
  // The key, as above, of the CA at the end of its chain; empty: it was seen
  // without its connection.
  std::string anchor = {};
};
// As `key` above.
std::string KeyOf(const X509* certificate);

// What a certificate's issuer is called that is made of the job key `id`.
std::string NameOfJobKey(absl::string_view id);

// Equal for names that are the same to those who check certificates.
std::string NameHashOf(const X509_NAME* name);
// In hex, upper case.
std::string SerialText(const ASN1_INTEGER* serial);
// Malformed: the infinite past.
absl::Time TimeOf(const ASN1_TIME* time);

// When the first of these ends; null or none: never.
absl::Time FirstEndOf(const STACK_OF(X509) * certificates);

// Null: all empty. Of the certificate alone: nothing above it is seen.
CertificateFacts FactsOf(const X509* certificate);
// Of what the other side has shown, with its chain as it was verified.
CertificateFacts FactsOf(const SSL* connection);
// Of the first one in `pem`; none is there: all empty.
CertificateFacts FactsOf(absl::string_view pem);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_CERTIFICATE_FACTS_H_
