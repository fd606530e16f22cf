#include "coordinator/admin/agent_probe.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace pactrain::coordinator {
namespace {

constexpr timeval kPatience = {2, 0};

absl::Status CheckFile(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) {
    return errno == EACCES
               ? absl::PermissionDeniedError("its folder is another user's")
               : absl::NotFoundError("is not there");
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError("is no socket");
  }
  if (geteuid() != 0 && found.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "is the agent of user ", found.st_uid, ", and you are ", geteuid()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<wire::About> AskAgent(const std::string& path) {
  RETURN_IF_ERROR(CheckFile(path));
  sockaddr_un address = {};
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::FailedPreconditionError("is too long for a socket");
  }
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  wire::Ask ask = {};
  ask.header = {wire::Kind::kAsk, sizeof(ask)};
  std::array<char, wire::kMaxMessage> answer;
  ssize_t bytes = -1;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, &ask, sizeof ask, MSG_NOSIGNAL) == sizeof ask) {
    bytes = recv(fd, answer.data(), answer.size(), 0);
  }
  if (bytes <= 0) {
    return absl::UnavailableError(
        absl::StrCat("is there, but nobody answers (",
                     bytes == 0 ? "closed" : std::strerror(errno), ")"));
  }
  wire::About about;
  std::memcpy(&about, answer.data(), sizeof(wire::Header));
  if (bytes != sizeof about || about.header.kind != wire::Kind::kAbout) {
    return absl::FailedPreconditionError(
        "is answered by something else than an agent of this release");
  }
  std::memcpy(&about, answer.data(), sizeof about);
  for (char* end :
       {std::end(about.version), std::end(about.agent), std::end(about.site),
        std::end(about.listen), std::end(about.data_address),
        std::end(about.coordinator)}) {
    end[-1] = 0;
  }
  return about;
}

}  // namespace pactrain::coordinator
