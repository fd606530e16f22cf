// The state directory and the files in it, for nobody but this process's user.
//
// Whoever may change what a name in it leads to could have files of others
// opened, and their modes changed: nothing is followed, and what belongs to
// somebody else is refused.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_STORE_OWN_FOLDER_H_
#define PACTRAIN_COORDINATOR_STORE_OWN_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pactrain::coordinator {

class OwnFolder {
 public:
  // Makes it and what is missing above it, and takes from others the right to
  // write there.
  //   FailedPrecondition: it is a symbolic link, it or a folder above it
  //                       belongs to another user, or others may write above.
  //   Unavailable, ResourceExhausted: the system does not let it be made.
  static absl::StatusOr<OwnFolder> Open(const std::string& path);
  OwnFolder(OwnFolder&& other) noexcept;
  OwnFolder& operator=(OwnFolder&& other) = delete;
  ~OwnFolder();

  // Opens the file, and makes it for its owner alone; an existing one is taken
  // from everybody else. The caller closes it. Errors: as above, or it is no
  // plain file, or has a second name.
  absl::StatusOr<int> OpenFile(const std::string& name) const;
  // The same of one that need not be there, which is closed again.
  absl::Status MakePrivate(const std::string& name) const;

 private:
  OwnFolder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  // -1: it is not there, which only without O_CREAT in `flags` is no error.
  absl::StatusOr<int> OpenChecked(const std::string& name, int flags) const;

  std::string path_;
  int fd_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_OWN_FOLDER_H_
