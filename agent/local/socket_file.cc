#include "agent/local/socket_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/directories.h"
#include "base/safe_folders.h"
#include "base/status_macros.h"

namespace pactrain::agent {
namespace {

constexpr int kBacklog = 128;
constexpr int kLockTries = 50;
constexpr int kLockPauseMs = 10;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status Unavailable(const std::string& path, absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("socket ", path, ": ", what, ": ", std::strerror(errno)));
}

// Those above the file `path`, from the root on.
std::vector<std::string> FoldersAbove(const std::string& path) {
  std::vector<std::string> folders;
  for (size_t end = path.find('/', 1); end != path.npos;
       end = path.find('/', end + 1)) {
    folders.push_back(path.substr(0, end));
  }
  return folders;
}

absl::Status MakeFolders(const std::string& path, const std::string& directory,
                         std::optional<gid_t> group) {
  std::vector<std::string> missing;
  for (const std::string& folder : FoldersAbove(path)) {
    struct stat info = {};
    if (stat(folder.c_str(), &info) != 0) missing.push_back(folder);
  }
  if (!base::MakeDirectories(directory)) {
    return Unavailable(path, absl::StrCat("cannot make ", directory));
  }
  if (!group.has_value()) return absl::OkStatus();
  for (const std::string& folder : missing) {
    if (chown(folder.c_str(), -1, *group) != 0 ||
        chmod(folder.c_str(), 0750) != 0) {
      return Unavailable(
          path, absl::StrCat("cannot give ", folder, " to group ", *group));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGroupEnters(const std::string& path, gid_t group) {
  for (const std::string& folder : FoldersAbove(path)) {
    struct stat info = {};
    if (stat(folder.c_str(), &info) != 0) continue;
    const mode_t needed = info.st_gid == group ? S_IXGRP : S_IXOTH;
    if ((info.st_mode & needed) != 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "socket ", path, ": group ", group, " (--socket-group) cannot enter ",
        folder, "; run: chgrp ", group, " ", folder, " && chmod g+x ", folder));
  }
  return absl::OkStatus();
}

absl::Status PrepareDirectory(const std::string& path,
                              std::optional<gid_t> group) {
  const std::string directory = path.substr(0, path.rfind('/'));
  if (directory.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(MakeFolders(path, directory, group));
  struct stat info = {};
  if (stat(directory.c_str(), &info) != 0) {
    return Unavailable(path, absl::StrCat("cannot look at ", directory));
  }
  const bool others_write = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (others_write && (info.st_mode & S_ISVTX) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket ", path, ": others may write in ", directory,
                     " and could replace it; run: chmod 0700 ", directory));
  }
  // Who may rename a folder above can replace it as well.
  const std::string trouble =
      base::CheckFolders(path, /*one_more=*/false).trouble;
  if (!trouble.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket ", path, ": ", trouble));
  }
  return group.has_value() ? CheckGroupEnters(path, *group) : absl::OkStatus();
}

// Locks the directory of `path` until the result is closed. While this is held
// no trainer takes away the file there because nobody listens yet
// (trainer/dead_socket.h), and no other agent replaces it. Others of ours hold
// it for moments; a stranger who keeps it must not stop an agent.
base::Fd LockDirectory(const std::string& path) {
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  base::Fd lock(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int tries = 0; tries < kLockTries; ++tries) {
    if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) break;
    if (errno != EWOULDBLOCK) break;  // It cannot be locked at all.
    poll(nullptr, 0, kLockPauseMs);
  }
  return lock;
}

// Makes room for a socket file at `path`.
absl::Status RemoveStale(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket ", path,
                     ": there is a file of another kind; give another path"));
  }
  // Never waits: a queue that is full (EAGAIN) has an owner, too.
  const base::Fd probe(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = AddressOf(path);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof address) == 0 ||
      errno != ECONNREFUSED) {
    return absl::AlreadyExistsError(
        absl::StrCat("socket ", path,
                     ": another agent listens there; stop it or give this one "
                     "another --socket"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Unavailable(path, "cannot remove the stale file");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ParseSocketPath(absl::string_view text) {
  absl::string_view path = text;
  absl::ConsumePrefix(&path, "unix:");
  constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() < 2 || path.front() != '/' || path.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is not unix: and an absolute path, such as "
                     "unix:/run/pactrain/agent.sock"));
  }
  if (path.size() > kMaxPath) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' has ", path.size(),
                     " characters, a socket path may have ", kMaxPath));
  }
  return std::string(path);
}

absl::StatusOr<SocketFile> SocketFile::Listen(const std::string& path,
                                              std::optional<gid_t> group) {
  RETURN_IF_ERROR(ParseSocketPath(path).status());
  RETURN_IF_ERROR(PrepareDirectory(path, group));
  const base::Fd lock = LockDirectory(path);
  RETURN_IF_ERROR(RemoveStale(path));
  base::Fd fd(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Unavailable(path, "socket");
  const sockaddr_un address = AddressOf(path);
  // Only our user may connect, from the very moment the file is there.
  const mode_t mask = umask(0177);
  const int bound = bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                         sizeof address);
  umask(mask);
  if (bound != 0) {
    return Unavailable(path, "--socket names a place where none can be made");
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return Unavailable(path, "stat");
  SocketFile file(std::move(fd), path, info.st_dev, info.st_ino);
  if (group.has_value() && (lchown(path.c_str(), -1, *group) != 0 ||
                            chmod(path.c_str(), 0660) != 0)) {
    return Unavailable(path, absl::StrCat("cannot give it to group ", *group));
  }
  if (listen(file.fd(), kBacklog) != 0) return Unavailable(path, "listen");
  return file;
}

void SocketFile::Remove() {
  if (!fd_.valid()) return;
  struct stat info = {};
  if (lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_) {
    unlink(path_.c_str());
  }
  fd_ = base::Fd();
}

}  // namespace pactrain::agent
