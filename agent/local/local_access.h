// Who may use an agent's socket: the agent's own user and root, and those whom
// the agent's settings name.
#ifndef PACTRAIN_AGENT_LOCAL_LOCAL_ACCESS_H_
#define PACTRAIN_AGENT_LOCAL_LOCAL_ACCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pactrain::agent {

// The process at the other end of a Unix socket, as it was when it connected.
struct Peer {
  pid_t process = 0;
  uid_t user = 0;
  std::vector<gid_t> groups;  // Its own one first.
};

// Unavailable: the system does not tell. Then it is nobody who may do anything.
absl::StatusOr<Peer> PeerOf(int socket);

// Root or the agent's own, who always may.
bool IsOwnUser(uid_t user);

struct LocalAccess {
  // Its members may use the socket; none: nobody more may.
  std::optional<gid_t> group;
  // If there are any: of the group these alone.
  std::vector<uid_t> users;

  // PermissionDenied: says who may not and what to do.
  absl::Status Check(const Peer& peer) const;
};

// A name or a number.
// InvalidArgument: the system knows no such name.
absl::StatusOr<gid_t> ParseGroup(absl::string_view text);
absl::StatusOr<uid_t> ParseUser(absl::string_view text);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_LOCAL_ACCESS_H_
