// The lists of certificates that their CAs have taken back (CRLs), read anew
// while the coordinator runs.
//
// A file that cannot be used leaves what was read last in force, with one
// warning for each state of it. A list that is out of date counts all the same,
// with one warning a day.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_CRL_FILE_H_
#define PACTRAIN_COORDINATOR_CRL_FILE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/revoked.h"
#include "coordinator/watched_file.h"

namespace pactrain::coordinator {

class CrlFile {
 public:
  // `ca`: the file of the CAs. A list may come before the CA that signed it.
  // InvalidArgument, or why it cannot be read: begins with the file.
  static absl::StatusOr<std::unique_ptr<CrlFile>> Open(const std::string& path,
                                                       const std::string& ca);

  // What is in force. Looks at the file at most once a second; another pointer
  // than before: it has changed. `now` is monotonic, `wall` is not.
  std::shared_ptr<const base::RevokedCertificates> Get(absl::Duration now,
                                                       absl::Time wall);

 private:
  CrlFile(WatchedFile file, WatchedFile ca)
      : file_(std::move(file)),
        ca_(std::move(ca)),
        lists_(file_.contents()),
        cas_(ca_.contents()) {}
  // Of what was read last.
  absl::StatusOr<base::RevokedCertificates> Parse() const;

  WatchedFile file_, ca_;
  std::string lists_, cas_;  // As they could be read last.
  std::shared_ptr<const base::RevokedCertificates> revoked_;
  absl::Time next_warning_ = absl::InfinitePast();
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CRL_FILE_H_
