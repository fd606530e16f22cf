// Certificates that their CAs have taken back: what lists of them say (CRLs,
// RFC 5280).
//
// Immutable; thread-safe.
#ifndef PACTRAIN_BASE_TLS_REVOKED_H_
#define PACTRAIN_BASE_TLS_REVOKED_H_

#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace pactrain::base {

class RevokedCertificates {
 public:
  RevokedCertificates() = default;  // None.
  // Of one or more lists in PEM, each signed by one of the CAs in `ca_pem`. A
  // list that is out of date counts all the same.
  // InvalidArgument: none is there; one is malformed, of no such CA or not
  // signed by it, or says what is not followed here (deltas, indirect lists).
  static absl::StatusOr<RevokedCertificates> Of(absl::string_view pem,
                                                absl::string_view ca_pem);

  // As CertificateFacts has them.
  bool Contains(const std::string& ca, const std::string& serial) const {
    return certificates_.contains({ca, serial});
  }
  size_t size() const { return certificates_.size(); }
  // When the first of the lists is out of date.
  absl::Time until() const { return until_; }

 private:
  std::set<std::pair<std::string, std::string>> certificates_;
  absl::Time until_ = absl::InfiniteFuture();
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_REVOKED_H_
