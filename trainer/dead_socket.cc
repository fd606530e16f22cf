#include "trainer/dead_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fd.h"

namespace pactrain::trainer {
namespace {

constexpr int kTries = 10;
constexpr int kPauseMs = 20;

// The error of a connect; 0: somebody listens.
int Probe(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  const base::Fd probe(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool connected =
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&name),
              sizeof(name)) == 0;
  return connected ? 0 : errno;
}

bool IsSocket(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

}  // namespace

void RemoveDeadSocket(const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un::sun_path)) return;
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  const base::Fd lock(
      open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid()) return;
  for (int tries = 0; tries < kTries; ++tries) {
    if (tries > 0) poll(nullptr, 0, kPauseMs);
    if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    const int error = Probe(path);
    // A file of another kind is refused, too.
    if (error == ECONNREFUSED && IsSocket(path)) unlink(path.c_str());
    // Not left to close(): a child forked meanwhile would keep the lock.
    flock(lock.get(), LOCK_UN);
    // A dying process closes its sockets one by one: who listens now may be
    // about to end.
    if (error != 0 && error != EAGAIN) return;
  }
}

}  // namespace pactrain::trainer
