// The key of a job: 32 random bytes that all its programs hold, and what each
// makes of them by itself: one and the same certificate authority, and with it
// certificates of its own. Nothing of that is ever written to a disk.
//
// The authority's private key is derived from the job's (HKDF-SHA256), so
// whoever holds the job's key can make a certificate for any name.
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

namespace pactrain::base {

class JobKey {
 public:
  // A new one, as text: 64 hex digits.
  static absl::StatusOr<std::string> NewText();

  // 64 hex digits, or 32 bytes in base64; white space around is no matter.
  // InvalidArgument: neither. The message never quotes the text.
  static absl::StatusOr<JobKey> FromText(absl::string_view text);

  // Of the file `path`, which only its owner and group may use.
  // InvalidArgument: begins with `name`, what messages call the setting; the
  // file cannot be read, others may use it, or as FromText().
  static absl::StatusOr<JobKey> FromFile(const std::string& name,
                                         const std::string& path);

  // Equal for equal keys; tells nothing else of them, so it may be logged.
  const std::string& id() const { return id_; }

  // The authority's certificate, in PEM. It holds for ever.
  absl::StatusOr<std::string> CaPem() const;

  // A certificate for `uri`, for both ends of a connection, and its new private
  // key, in PEM.
  absl::StatusOr<std::string> Issue(const std::string& uri, absl::Time from,
                                    absl::Time to) const;

 private:
  using Key = std::shared_ptr<EVP_PKEY>;
  using Certificate = std::shared_ptr<X509>;
  struct Request;

  JobKey(Key ca_key, std::string id)
      : ca_key_(std::move(ca_key)), id_(std::move(id)) {}
  absl::StatusOr<Certificate> Sign(const Request& request) const;

  Key ca_key_;
  std::string id_;
};

// Writes a new key into a new file that only its owner may use.
// InvalidArgument: the file is there already, or cannot be made.
absl::Status WriteNewJobKey(const std::string& path);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_JOB_KEY_H_
