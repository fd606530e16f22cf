#include "base/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace pactrain::base {
namespace {

// Of a variable that holds a decimal number; 0: it does not.
unsigned long long NumberIn(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return 0;
  char* end = nullptr;
  const unsigned long long number = std::strtoull(text, &end, 10);
  return *end == '\0' ? number : 0;
}

}  // namespace

bool TellServiceManager(const std::string& state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return true;
  sockaddr_un address = {};
  const size_t size = std::strlen(path);
  if (size >= sizeof address.sun_path) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, size);
  // An abstract name, which is written with an '@'.
  if (*path == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const ssize_t sent =
      sendto(fd, state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
             reinterpret_cast<const sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size));
  close(fd);
  return sent == static_cast<ssize_t>(state.size());
}

std::optional<std::chrono::microseconds> WatchdogPeriod() {
  const unsigned long long limit = NumberIn("WATCHDOG_USEC");
  const unsigned long long process = NumberIn("WATCHDOG_PID");
  // The variables of a parent that is watched are not for its children.
  if (limit < 2 ||
      (process != 0 && process != static_cast<unsigned long long>(getpid()))) {
    return std::nullopt;
  }
  return std::chrono::microseconds(limit / 2);
}

}  // namespace pactrain::base
