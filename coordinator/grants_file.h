// The coordinator's policy file, read anew while it runs.
//
// New contents count once they were found twice, so that nobody is locked out
// by half of a file. One that cannot be used leaves what was read last in
// force, with one warning for each state of the file.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_GRANTS_FILE_H_
#define PACTRAIN_COORDINATOR_GRANTS_FILE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/grants.h"

namespace pactrain::coordinator {

class GrantsFile {
 public:
  static constexpr absl::Duration kLookEvery = absl::Seconds(1);

  // InvalidArgument, or why it cannot be read: begins with the file, and names
  // the line where a key is wrong.
  static absl::StatusOr<std::unique_ptr<GrantsFile>> Open(
      const std::string& path);

  // What is in force. Looks at the file at most every kLookEvery; another
  // pointer than before: it has changed.
  std::shared_ptr<const Grants> Get(absl::Duration now);

 private:
  explicit GrantsFile(const std::string& path) : path_(path) {}

  const std::string path_;
  std::string found_;  // As the file was last looked at.
  std::string taken_;  // What was read of it last, or could not be.
  absl::Duration looked_ = -absl::InfiniteDuration();
  std::shared_ptr<const Grants> grants_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_GRANTS_FILE_H_
