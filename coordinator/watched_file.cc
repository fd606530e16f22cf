#include "coordinator/watched_file.h"

#include "base/status_macros.h"
#include "config/small_file.h"

namespace pactrain::coordinator {

absl::StatusOr<WatchedFile> WatchedFile::Open(const std::string& path) {
  WatchedFile file(path);
  ASSIGN_OR_RETURN(file.taken_, config::ReadGuardedFile(path));
  file.found_ = file.taken_;
  return file;
}

std::optional<absl::StatusOr<std::string>> WatchedFile::News(
    absl::Duration now) {
  if (now - looked_ < kLookEvery) return std::nullopt;
  looked_ = now;
  absl::StatusOr<std::string> contents = config::ReadGuardedFile(path_);
  // What cannot be read is one state of the file, too.
  std::string found =
      contents.ok() ? *contents : std::string(contents.status().message());
  std::swap(found, found_);
  if (found_ != found || found_ == taken_) return std::nullopt;
  taken_ = found_;
  return contents;
}

}  // namespace pactrain::coordinator
