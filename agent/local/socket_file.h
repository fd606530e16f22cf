// The agent's Unix socket in the file system.
//
// Thread-compatible. Owns the listening socket and, while it is still the same
// one, the file.
#ifndef PACTRAIN_AGENT_LOCAL_SOCKET_FILE_H_
#define PACTRAIN_AGENT_LOCAL_SOCKET_FILE_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fd.h"

namespace pactrain::agent {

// "unix:/run/pactrain/agent.sock" or the path alone, as an absolute path.
//   InvalidArgument: neither, or longer than a socket path may be.
absl::StatusOr<std::string> ParseSocketPath(absl::string_view text);

class SocketFile {
 public:
  // Listens (SOCK_SEQPACKET, non-blocking). A missing directory is made with
  // mode 0700, and of `group`, which then may enter it and connect, with 0750;
  // a socket file on which nobody listens any more is replaced.
  //   InvalidArgument:    as ParseSocketPath().
  //   AlreadyExists:      another agent listens there.
  //   FailedPrecondition: the path is something else than a socket, others
  //                       could replace the file, or `group` cannot reach it.
  //   Unavailable:        the system refuses.
  static absl::StatusOr<SocketFile> Listen(
      const std::string& path, std::optional<gid_t> group = std::nullopt);
  SocketFile(SocketFile&&) = default;
  SocketFile& operator=(SocketFile&&) = default;
  ~SocketFile() { Remove(); }

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // Takes the file away unless another agent has put its own there.
  void Remove();

 private:
  SocketFile(base::Fd fd, std::string path, dev_t device, ino_t inode)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        device_(device),
        inode_(inode) {}

  base::Fd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_SOCKET_FILE_H_
