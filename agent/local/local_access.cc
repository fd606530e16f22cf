#include "agent/local/local_access.h"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace pactrain::agent {
namespace {

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59  // Linux 4.13.
#endif

constexpr size_t kMostGroups = 65536;  // As NGROUPS_MAX of Linux.
constexpr size_t kUsualGroups = 64;

absl::Status Untold(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(
      "the system does not tell the ", what, " of who connects (",
      std::strerror(errno),
      "), so nobody is let in.\nRun the agent where SO_PEERCRED and "
      "SO_PEERGROUPS are allowed (seccomp)."));
}

bool ReadGroups(int socket, std::vector<gid_t>& groups) {
  groups.resize(kUsualGroups);
  socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  while (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) !=
         0) {
    // Then it says how many there are.
    if (errno != ERANGE || bytes > kMostGroups * sizeof(gid_t)) return false;
    groups.resize(bytes / sizeof(gid_t));
  }
  groups.resize(bytes / sizeof(gid_t));
  return true;
}

}  // namespace

absl::StatusOr<Peer> PeerOf(int socket) {
  ucred found = {};
  socklen_t size = sizeof found;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0) {
    return Untold("user");
  }
  Peer peer;
  peer.process = found.pid;
  peer.user = found.uid;
  if (!ReadGroups(socket, peer.groups)) return Untold("groups");
  peer.groups.insert(peer.groups.begin(), found.gid);
  return peer;
}

bool IsOwnUser(uid_t user) { return user == 0 || user == geteuid(); }

absl::Status LocalAccess::Check(const Peer& peer) const {
  if (IsOwnUser(peer.user)) return absl::OkStatus();
  const auto refuse = [&](absl::string_view what, absl::string_view advice) {
    return absl::PermissionDeniedError(
        absl::StrCat("user ", peer.user, " may not use the agent of user ",
                     geteuid(), what, ".\n", advice));
  };
  if (!group.has_value()) {
    return refuse("",
                  "Run the training as the agent's user, or give the agent "
                  "--socket-group, a group of those who may.");
  }
  if (std::find(peer.groups.begin(), peer.groups.end(), *group) ==
      peer.groups.end()) {
    return refuse(absl::StrCat(": it is not of group ", *group),
                  "Add the user to that group (--socket-group).");
  }
  if (!users.empty() &&
      std::find(users.begin(), users.end(), peer.user) == users.end()) {
    return refuse(": its --socket-users do not name it",
                  "Add the user to the agent's --socket-users.");
  }
  return absl::OkStatus();
}

absl::StatusOr<gid_t> ParseGroup(absl::string_view text) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(text, &number)) return number;
  const group* found = getgrnam(std::string(text).c_str());
  if (found != nullptr) return found->gr_gid;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text,
      "' is no group of this machine; allowed is a name that getent group "
      "shows, or a number"));
}

absl::StatusOr<uid_t> ParseUser(absl::string_view text) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(text, &number)) return number;
  const passwd* found = getpwnam(std::string(text).c_str());
  if (found != nullptr) return found->pw_uid;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text,
      "' is no user of this machine; allowed is a name that getent passwd "
      "shows, or a number"));
}

}  // namespace pactrain::agent
