// Who a program is, as its certificate says: the one URI in the subject's
// alternative names.
//
//   spiffe://pactrain/agent/NAME   the agent of that name
//   spiffe://pactrain/coordinator  a coordinator
//   spiffe://pactrain/operator     may look at jobs and change them
//   spiffe://pactrain/reader       may look at jobs
//
// Pure functions.
#ifndef PACTRAIN_PROTOCOL_IDENTITY_H_
#define PACTRAIN_PROTOCOL_IDENTITY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pactrain::protocol {

enum class Role { kAgent, kCoordinator, kOperator, kReader };

struct Identity {
  Role role = Role::kReader;
  std::string agent;  // Its name; empty for all but agents.

  std::string ToString() const;  // "spiffe://pactrain/agent/node-1"
  bool operator==(const Identity&) const = default;
};

// Of a certificate with these URIs. A second one could be somebody else's, so
// there must be exactly one.
//   Unauthenticated: none, more than one, or one that is not of the form above.
absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& uris);

// OK if a certificate with these URIs is `expected`'s.
//   Unauthenticated:  as IdentityOf().
//   PermissionDenied: it is somebody else's; names both.
absl::Status CheckIdentity(const std::vector<std::string>& uris,
                           const Identity& expected);

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_IDENTITY_H_
