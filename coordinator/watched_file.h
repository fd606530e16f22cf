// A small file that says who may do what, read anew while it is in use.
//
// New contents count once they were found twice, so that half of a file never
// does.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_WATCHED_FILE_H_
#define PACTRAIN_COORDINATOR_WATCHED_FILE_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace pactrain::coordinator {

class WatchedFile {
 public:
  static constexpr absl::Duration kLookEvery = absl::Seconds(1);

  // As config::ReadGuardedFile().
  static absl::StatusOr<WatchedFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // As they were taken last.
  const std::string& contents() const { return taken_; }
  // What the file has become, or why it cannot be read, once. Looks at it at
  // most every kLookEvery.
  std::optional<absl::StatusOr<std::string>> News(absl::Duration now);

 private:
  explicit WatchedFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::string found_;  // As the file was last looked at.
  std::string taken_;  // What was found twice last.
  absl::Duration looked_ = -absl::InfiniteDuration();
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_WATCHED_FILE_H_
