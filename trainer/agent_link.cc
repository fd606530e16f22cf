#include "trainer/agent_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "base/safe_folders.h"

namespace pactrain::trainer {
namespace {

using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxFds = 2;  // Slot and result.

Error Unreachable(const std::string& path, int error) {
  std::string why = std::strerror(error);
  if (error == ENOENT) why = "there is no such socket";
  if (error == ECONNREFUSED) why = "the socket is there but nobody listens";
  if (error == EPROTOTYPE) why = "the socket is not an agent's";
  std::string what =
      "Start pactrain-agent on this node, or set PACTRAIN_AGENT "
      "to the socket it listens on.";
  if (error == EACCES || error == EPERM) {
    what =
        "Run the training as the agent's user, or give this user access to "
        "the socket.";
  }
  return {.code = wire::Code::kAgentUnresponsive,
          .text = "no agent at unix:" + path + ": " + why + ".\n" + what,
          .final = true,
          .may_rejoin = error == ENOENT || error == ECONNREFUSED};
}

Error BadAddress(const std::string& address, const std::string& why) {
  return {.code = wire::Code::kInvalidArgument,
          .text = "agent address \"" + address + "\" " + why +
                  ".\nGive the socket of the agent on this node, like "
                  "unix:/run/pactrain/agent.sock.",
          .final = true};
}

// That who serves the socket at `path` is root, this user, or the user whom its
// folder was given to: else anybody could take the gradients and give others.
Error CheckServer(int socket, const std::string& path) {
  const base::SafeFolders folders = base::CheckFolders(path, /*one_more=*/true);
  ucred server = {};
  socklen_t size = sizeof(server);
  std::string why = folders.trouble;
  if (why.empty() &&
      getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &server, &size) != 0) {
    why = std::string("the system does not tell who serves it: ") +
          std::strerror(errno);
  }
  if (why.empty() && !folders.Trusts(server.uid)) {
    why = "user " + std::to_string(server.uid) +
          " serves it, who is neither root nor this user nor the owner of its "
          "folder";
  }
  if (why.empty()) return {};
  return {.code = wire::Code::kRefused,
          .text = "the socket unix:" + path + " cannot be trusted: " + why +
                  ".\nStart the agent in a folder of its own, such as "
                  "/run/pactrain, and set PACTRAIN_AGENT to its socket there.",
          .final = true};
}

int ToMilliseconds(std::optional<nanoseconds> timeout) {
  if (!timeout.has_value()) return -1;
  // Rounded up: a poll that ends before the deadline would spin.
  const int64_t ms =
      std::chrono::ceil<std::chrono::milliseconds>(*timeout).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, INT_MAX));
}

std::vector<base::Fd> TakeFds(msghdr* message) {
  std::vector<base::Fd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr;
       c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Error AgentLink::Connect(const std::string& address, nanoseconds timeout) {
  const bool prefixed = address.rfind("unix:", 0) == 0;
  const std::string path = prefixed ? address.substr(5) : address;
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (path.empty() || path[0] != '/') {
    return BadAddress(address, "is not unix: and an absolute path");
  }
  if (path.size() >= sizeof(name.sun_path)) {
    return BadAddress(address, "has " + std::to_string(path.size()) +
                                   " characters, a socket path may have " +
                                   std::to_string(sizeof(name.sun_path) - 1));
  }
  std::memcpy(name.sun_path, path.data(), path.size());

  socket_ = base::Fd(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  wake_ = base::Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!socket_.valid() || !wake_.valid()) return Unreachable(path, errno);
  const Clock::time_point end = Clock::now() + timeout;
  while (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name),
                 sizeof(name)) != 0) {
    // EAGAIN: the agent is busy accepting others; there is no event to wait
    // for.
    const int error = errno;
    if ((error != EAGAIN && error != EINTR) || Clock::now() >= end) {
      return Unreachable(path, error);
    }
    poll(nullptr, 0, 10);
  }
  path_ = path;
  return CheckServer(socket_.get(), path);
}

bool AgentLink::SendNow(const void* message, size_t bytes, bool* broken) {
  *broken = false;
  while (send(socket_.get(), message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    *broken = errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS;
    return false;
  }
  return true;
}

bool AgentLink::Send(const void* message, size_t bytes) {
  bool broken = false;
  if (queued_.empty() && SendNow(message, bytes, &broken)) return true;
  if (broken || queued_.size() >= kMaxQueued) return false;
  const char* begin = static_cast<const char*>(message);
  queued_.emplace_back(begin, begin + bytes);
  return true;
}

bool AgentLink::Flush() {
  while (!queued_.empty()) {
    bool broken = false;
    if (!SendNow(queued_.front().data(), queued_.front().size(), &broken)) {
      return !broken;
    }
    queued_.pop_front();
  }
  return true;
}

AgentLink::Received AgentLink::Receive(Packet* packet) {
  buffer_.resize(wire::kMaxMessage);
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  iovec part = {buffer_.data(), buffer_.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t bytes = -1;
  // ECONNRESET is said once before what the agent still sent can be read.
  for (int tries = 0; bytes < 0 && tries < 3; ++tries) {
    bytes = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes >= 0) break;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Received::kNothing;
    if (errno != EINTR && errno != ECONNRESET) return Received::kClosed;
  }
  if (bytes < 0) return Received::kNothing;
  packet->fds = TakeFds(&message);
  if (bytes == 0) return Received::kClosed;
  packet->bytes.assign(buffer_.data(), buffer_.data() + bytes);
  return Received::kPacket;
}

void AgentLink::Poll(bool for_room, std::optional<nanoseconds> timeout) {
  pollfd fds[2] = {};
  fds[0].fd = socket_.get();
  fds[0].events = static_cast<short>(for_room ? POLLIN | POLLOUT : POLLIN);
  fds[1].fd = wake_.get();
  fds[1].events = POLLIN;
  poll(fds, 2, ToMilliseconds(timeout));
  if ((fds[1].revents & POLLIN) != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained =
        read(wake_.get(), &count, sizeof(count));
  }
}

void AgentLink::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(wake_.get(), &one, sizeof(one));
}

}  // namespace pactrain::trainer
