#include "coordinator/admin/dial.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/net.h"
#include "base/status_macros.h"

namespace pactrain::coordinator {
namespace {

// A socket that is being connected.
absl::StatusOr<int> Begin(const std::string& address) {
  ASSIGN_OR_RETURN(const base::HostPort parsed, base::ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(
      parsed.host.c_str(), absl::StrCat(parsed.port).c_str(), &hints, &found);
  if (error != 0) return absl::NotFoundError(gai_strerror(error));
  const int fd = socket(found->ai_family,
                        found->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int connected = connect(fd, found->ai_addr, found->ai_addrlen);
  const int why = errno;
  freeaddrinfo(found);
  if (connected == 0 || why == EINPROGRESS) return fd;
  close(fd);
  return absl::UnavailableError(std::strerror(why));
}

absl::Status ResultOf(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? absl::OkStatus()
                    : absl::UnavailableError(std::strerror(error));
}

}  // namespace

std::map<std::string, absl::Status> DialAll(
    const std::set<std::string>& addresses, absl::Duration limit) {
  std::map<std::string, absl::Status> results;
  std::vector<std::string> names;
  std::vector<pollfd> open;
  for (const std::string& address : addresses) {
    const absl::StatusOr<int> fd = Begin(address);
    results[address] =
        fd.ok() ? absl::UnavailableError(absl::StrCat(
                      "no answer within ", absl::FormatDuration(limit)))
                : fd.status();
    if (!fd.ok()) continue;
    names.push_back(address);
    open.push_back({*fd, POLLOUT, 0});
  }
  const absl::Duration end = base::MonotonicNow() + limit;
  size_t left = open.size();
  while (left > 0 && base::MonotonicNow() < end) {
    const auto wait = absl::ToInt64Milliseconds(end - base::MonotonicNow());
    if (poll(open.data(), open.size(), static_cast<int>(wait) + 1) <= 0)
      continue;
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) continue;
      results[names[i]] = ResultOf(open[i].fd);
      close(open[i].fd);
      open[i].fd = -1;  // poll() leaves it alone.
      --left;
    }
  }
  for (const pollfd& late : open) {
    if (late.fd >= 0) close(late.fd);
  }
  return results;
}

}  // namespace pactrain::coordinator
