#include "coordinator/store/own_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/directories.h"
#include "base/safe_folders.h"
#include "base/status_macros.h"

namespace pactrain::coordinator {
namespace {

absl::Status SystemError(const std::string& path, absl::string_view doing) {
  const int error = errno;
  const std::string text = absl::StrCat(
      "--state-dir: ", path, ": cannot ", doing, ": ", std::strerror(error),
      "; user ", geteuid(), " needs to own it, with room on its disk");
  return error == ENOSPC ? absl::ResourceExhaustedError(text)
                         : absl::UnavailableError(text);
}

absl::Status Refused(const std::string& path, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("--state-dir: ", path, " ", what));
}

std::string OwnerText(const struct stat& about) {
  return absl::StrCat("belongs to user ", about.st_uid,
                      ", and this process runs as user ", geteuid());
}

}  // namespace

absl::StatusOr<OwnFolder> OwnFolder::Open(const std::string& path) {
  std::string name = path;  // Else the link itself would be followed.
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  // As it is written: who owns a link in it chooses where that leads. Before
  // anything is made there.
  std::error_code unresolved;
  const std::string whole = std::filesystem::absolute(name, unresolved);
  if (unresolved) return SystemError(name, "find the state directory");
  const std::string trouble =
      base::CheckFolders(whole, /*one_more=*/false).trouble;
  if (!trouble.empty()) return Refused(name + ":", trouble);
  if (!base::MakeDirectories(name)) {
    return SystemError(name, "make the state directory");
  }
  const int fd =
      open(name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && (errno == ELOOP || errno == ENOTDIR)) {
    return Refused(name,
                   "is a symbolic link or no folder; name the folder itself");
  }
  if (fd < 0) return SystemError(name, "open the state directory");
  OwnFolder folder(name, fd);
  struct stat about = {};
  if (fstat(fd, &about) != 0) return SystemError(name, "look at");
  if (about.st_uid != geteuid()) {
    return Refused(name, absl::StrCat(OwnerText(about),
                                      "; give a folder of that one, or run as "
                                      "the owner"));
  }
  if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0 &&
      fchmod(fd, about.st_mode & 07777 & ~(S_IWGRP | S_IWOTH)) != 0) {
    return SystemError(name, "take write access from others");
  }
  return folder;
}

OwnFolder::OwnFolder(OwnFolder&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OwnFolder::~OwnFolder() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<int> OwnFolder::OpenFile(const std::string& name) const {
  return OpenChecked(name, O_CREAT);
}

absl::Status OwnFolder::MakePrivate(const std::string& name) const {
  ASSIGN_OR_RETURN(const int fd, OpenChecked(name, 0));
  if (fd >= 0) close(fd);
  return absl::OkStatus();
}

absl::StatusOr<int> OwnFolder::OpenChecked(const std::string& name,
                                           int flags) const {
  const std::string path = absl::StrCat(path_, "/", name);
  // Not blocked by a FIFO that somebody has put there.
  const int fd =
      openat(fd_, name.c_str(),
             flags | O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0 && errno == ENOENT && (flags & O_CREAT) == 0) return -1;
  if (fd < 0 && errno == ELOOP) {
    return Refused(path, "is a symbolic link; remove it");
  }
  if (fd < 0) return SystemError(path, "open");
  struct stat about = {};
  absl::Status checked;
  if (fstat(fd, &about) != 0) {
    checked = SystemError(path, "look at");
  } else if (!S_ISREG(about.st_mode)) {
    checked = Refused(path, "is no plain file; remove it");
  } else if (about.st_uid != geteuid()) {
    checked = Refused(path, absl::StrCat(OwnerText(about),
                                         "; who wrote it may know what is in "
                                         "it: remove it, or give another "
                                         "folder"));
  } else if (about.st_nlink > 1) {
    checked = Refused(path, "has a second name elsewhere; copy it");
  } else if ((about.st_mode & 077) != 0 && fchmod(fd, 0600) != 0) {
    checked = SystemError(path, "take it from others (chmod it to 0600)");
  }
  if (checked.ok()) return fd;
  close(fd);
  return checked;
}

}  // namespace pactrain::coordinator
