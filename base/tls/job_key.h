// The key of a job: 32 random bytes that all its programs hold, and what each
// makes of them by itself: one and the same certificate authority, and with it
// certificates of its own. Nothing of that is ever written to a disk.
//
// The authority's private key is derived from the job's (HKDF-SHA256), so
// whoever holds the job's key can make a certificate for any name.
//
// A bound key is made of another: it makes certificates for URIs of one host
// alone. Its authority's certificate is signed by the first one's, with a name
// constraint (RFC 5280, 4.2.1.10), so that whoever checks a certificate checks
// that, too.
//
// Immutable; thread-safe. Internal: OpenSSL failed.
#ifndef PACTRAIN_BASE_TLS_JOB_KEY_H_
#define PACTRAIN_BASE_TLS_JOB_KEY_H_

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/secret.h"

namespace pactrain::base {

class JobKey {
 public:
  // A new one, as text: 64 hex digits.
  static absl::StatusOr<std::string> NewText();

  // A new key of `host` alone, as text in one line. REQUIRES: it has a name
  // that is fit for a URI.
  // InvalidArgument: this one is bound itself.
  absl::StatusOr<std::string> NewBoundText(const std::string& host) const;

  // 64 hex digits, or 32 bytes in base64, or NewBoundText(); white space around
  // is no matter.
  // InvalidArgument: neither. The message never quotes the text.
  static absl::StatusOr<JobKey> FromText(absl::string_view text);

  // Equal for equal keys; tells nothing else of them, so it may be logged.
  const std::string& id() const { return id_; }

  // The host that certificates of it are for; empty: any.
  const std::string& host() const { return host_; }

  // The first authority's certificate, in PEM. It holds for ever.
  absl::StatusOr<std::string> CaPem() const;

  // A certificate for `uri`, for both ends of a connection, with those between
  // it and the first authority's, and its new private key, in PEM.
  absl::StatusOr<std::string> Issue(const std::string& uri, absl::Time from,
                                    absl::Time to) const;

 private:
  using Key = std::shared_ptr<EVP_PKEY>;
  using Certificate = std::shared_ptr<X509>;
  struct Request;

  JobKey(Key ca_key, std::string id)
      : ca_key_(std::move(ca_key)), id_(std::move(id)) {}
  static absl::StatusOr<JobKey> FromSecret(const Secret& secret);
  static absl::StatusOr<JobKey> FromBoundText(absl::string_view text);
  absl::StatusOr<Certificate> Sign(const Request& request) const;
  absl::StatusOr<Certificate> SignOwn() const;

  Key ca_key_;
  std::string id_;
  // Of a bound one: the first authority's certificate, and its own.
  std::string host_;
  Certificate first_, between_;
};

// Writes a new key, or another's text, into a new file that only its owner may
// use. InvalidArgument: the file is there already, or cannot be made.
absl::Status WriteNewJobKey(const std::string& path);
absl::Status WriteJobKey(const std::string& path, std::string text);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_JOB_KEY_H_
