// The keys in a job key's file: one, or, while it is changed for another, both
// with their times, each in a line of its own:
//
//   KEY [from TIME] [until TIME]
//
// TIME is UTC, as 2026-01-31T12:00:00Z. A daemon takes the certificates of all
// of them whose `until` has not come, also before their `from`: files are not
// everywhere at once, and clocks differ. Its own is made of the last one whose
// `from` has come.
//
// Immutable; thread-safe. Internal: OpenSSL failed.
#ifndef PACTRAIN_BASE_TLS_JOB_KEYS_H_
#define PACTRAIN_BASE_TLS_JOB_KEYS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/tls/job_key.h"

namespace pactrain::base {

class JobKeys {
 public:
  static constexpr size_t kMaxKeys = 4;

  // Of one that is not to be changed.
  JobKeys(JobKey key) {  // NOLINT: it is one.
    keys_.push_back({std::move(key)});
  }

  // InvalidArgument: a line is no such one, there are more than kMaxKeys, or
  // they are not of the same host. The message never quotes a key.
  static absl::StatusOr<JobKeys> FromText(absl::string_view text);
  // Of the file `path`, which only its owner and group may use.
  // InvalidArgument: begins with `name`, what messages call the setting; the
  // file cannot be read, others may use it, or as FromText().
  static absl::StatusOr<JobKeys> FromFile(const std::string& name,
                                          const std::string& path);

  // The host that certificates of all of them are for; empty: any.
  const std::string& host() const { return keys_[0].key.host(); }
  // What an own certificate is made of at `now`.
  const JobKey& Shown(absl::Time now) const;
  // Whose certificates are taken at `now`, by id; Shown() always.
  std::vector<std::string> Taken(absl::Time now) const;
  // The certificates of their authorities, in PEM.
  absl::StatusOr<std::string> CaPem(absl::Time now) const;

  // The text of a file of new keys of `host` alone, one of each of these and
  // with its times. InvalidArgument: as JobKey::NewBoundText().
  absl::StatusOr<std::string> NewBoundText(const std::string& host) const;

 private:
  struct Entry {
    JobKey key;
    absl::Time from = absl::InfinitePast(), until = absl::InfiniteFuture();
  };
  JobKeys() = default;
  static absl::StatusOr<Entry> ReadLine(absl::string_view line);
  std::vector<const Entry*> TakenAt(absl::Time now) const;

  std::vector<Entry> keys_;  // At least one.
};

// The text of a job key's file at `now`, with a new key that is shown from
// `from` on; what is shown so far is taken until `until`. Lines that are over
// go. REQUIRES: now <= from <= until.
// InvalidArgument: it is no such text, of one job alone, or a change is under
// way.
struct ChangedKey {
  std::string text;
  std::string old_id, new_id;
};
absl::StatusOr<ChangedKey> ChangeKey(absl::string_view text, absl::Time now,
                                     absl::Time from, absl::Time until);

// The file's text. InvalidArgument: as JobKeys::FromFile().
absl::StatusOr<std::string> ReadJobKeyFile(const std::string& name,
                                           const std::string& path);
// Puts a text in the place of the file's, as a whole, with its owner and mode.
// InvalidArgument: it cannot be written.
absl::Status ReplaceJobKeyFile(const std::string& path,
                               const std::string& text);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_JOB_KEYS_H_
