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

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/directories.h"
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

absl::Status PrepareDirectory(const std::string& path) {
  const std::string directory = path.substr(0, path.rfind('/'));
  if (directory.empty()) return absl::OkStatus();
  if (!base::MakeDirectories(directory)) {
    return Unavailable(path, absl::StrCat("cannot make ", directory));
  }
  struct stat info = {};
  if (stat(directory.c_str(), &info) != 0) {
    return Unavailable(path, absl::StrCat("cannot look at ", directory));
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "socket ", path, ": ", directory, " is of user ", info.st_uid,
        ", who could replace it; give a folder of your own"));
  }
  const bool others_write = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (others_write && (info.st_mode & S_ISVTX) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket ", path, ": others may write in ", directory,
                     " and could replace it; run: chmod 0700 ", directory));
  }
  return absl::OkStatus();
}

// Locks the directory of `path` until the result is closed. While this is held
// no trainer takes away the file there because nobody listens yet
// (trainer/dead_socket.h), and no other agent replaces it. Others of ours hold
// it for moments; a stranger who keeps it must not stop an agent.
Fd LockDirectory(const std::string& path) {
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  Fd lock(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
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
  const Fd probe(
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
  RETURN_IF_ERROR(PrepareDirectory(path));
  const Fd lock = LockDirectory(path);
  RETURN_IF_ERROR(RemoveStale(path));
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Unavailable(path, "socket");
  const sockaddr_un address = AddressOf(path);
  // Only our user may connect, from the very moment the file is there.
  const mode_t mask = umask(0177);
  const int bound = bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                         sizeof address);
  umask(mask);
  if (bound != 0) return Unavailable(path, "bind");
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return Unavailable(path, "stat");
  SocketFile file(std::move(fd), path, info.st_dev, info.st_ino);
  if (group.has_value()) {
    // Its own before its mode lets any in.
    if (lchown(path.c_str(), -1, *group) != 0) {
      return Unavailable(
          path, absl::StrCat("cannot be given to group ", *group,
                             " (--socket-group), of which the agent's user "
                             "has to be a member"));
    }
    if (chmod(path.c_str(), 0660) != 0) return Unavailable(path, "chmod");
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
  fd_ = Fd();
}

}  // namespace pactrain::agent
