// The TLS context for the next connection: made of files, and made anew once
// they have changed.
//
// Files that cannot be used, half rewritten ones perhaps, leave the last good
// context in force, with one warning for each state of the files. So has a
// certificate that ends soon: one warning when it is first seen, and then one a
// day.
//
// Not thread-safe.
#ifndef PACTRAIN_BASE_TLS_TLS_SOURCE_H_
#define PACTRAIN_BASE_TLS_TLS_SOURCE_H_

#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {

class TlsSource {
 public:
  // Errors: as MakeTlsContext().
  static absl::StatusOr<std::unique_ptr<TlsSource>> Open(const TlsFiles& files);

  // Never null.
  const TlsContext& Get(absl::Time now = absl::Now());
  // Of what Get() gave last.
  const CertificateLives& lives() const { return lives_; }
  // The same: the CAs that are taken, as AnchorsOf().
  const std::set<std::string>& anchors() const { return anchors_; }

 private:
  explicit TlsSource(const TlsFiles& files) : files_(files) {}
  absl::Status Load();
  void ReadAgainIfChanged();
  void WarnOfTheEnd(absl::Time now);
  // Differs once a file was written or replaced.
  std::string Stamp() const;

  const TlsFiles files_;
  std::string stamp_;  // Of the files when they were last looked at.
  TlsContext context_;
  CertificateLives lives_;
  std::set<std::string> anchors_;
  absl::Time next_warning_ = absl::InfinitePast();
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_TLS_SOURCE_H_
