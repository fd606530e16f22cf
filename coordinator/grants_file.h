// The coordinator's policy file, read anew while it runs.
//
// One that cannot be used leaves what was read last in
// force, with one warning for each state of the file.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_GRANTS_FILE_H_
#define PACTRAIN_COORDINATOR_GRANTS_FILE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/grants.h"
#include "coordinator/watched_file.h"

namespace pactrain::coordinator {

class GrantsFile {
 public:
  // InvalidArgument, or why it cannot be read: begins with the file, and names
  // the line where a key is wrong.
  static absl::StatusOr<std::unique_ptr<GrantsFile>> Open(
      const std::string& path);

  // What is in force. Looks at the file at most once a second; another
  // pointer than before: it has changed.
  std::shared_ptr<const Grants> Get(absl::Duration now);

 private:
  explicit GrantsFile(WatchedFile file) : file_(std::move(file)) {}

  WatchedFile file_;
  std::shared_ptr<const Grants> grants_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_GRANTS_FILE_H_
