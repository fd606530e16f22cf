// Who a program is, as its certificate says: the one URI in the subject's
// alternative names.
//
//   spiffe://pactrain/agent/NAME     the agent of that name
//   spiffe://pactrain/coordinator    a coordinator
//   spiffe://pactrain/operator       may look at jobs and change them
//   spiffe://pactrain/operator/NAME  the operator of that name
//   spiffe://pactrain/reader         may look at jobs
//   spiffe://pactrain/reader/NAME    the reader of that name
//
// With the host JOB.job.pactrain it has to do with that job alone: so are the
// certificates that a key of one job makes, and X.509's name constraints bind
// them to that host. Such an agent is called NAME..JOB: so it can take the name
// of no agent of another job.
//
// Pure functions.
#ifndef PACTRAIN_PROTOCOL_IDENTITY_H_
#define PACTRAIN_PROTOCOL_IDENTITY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pactrain::protocol {

enum class Role { kAgent, kCoordinator, kOperator, kReader };

struct Identity {
  Role role = Role::kReader;
  std::string name;  // Of every agent; of operators and readers that have one.
  std::string job = {};  // All that it has to do with; empty: not bound.

  std::string ToString() const;  // "spiffe://pactrain/agent/node-1"
  // What policies call it: "agent/node-1", "operator", "job/JOB/operator".
  std::string Short() const;
  bool operator==(const Identity&) const = default;
};

// The host of URIs that have to do with `job` alone; empty: with any.
std::string HostOf(absl::string_view job);
// Of a host of that form; empty: it is none.
std::string JobOf(absl::string_view host);
// What an agent with a key of `job` alone is called: `name` itself where it is
// called so already, or the job is empty.
std::string AgentNameOf(absl::string_view name, absl::string_view job);
// Who an agent of that name is: the name says whether its key is of one job.
Identity AgentCalled(absl::string_view name);
// InvalidArgument: there can be no key of this job alone; begins with `field`.
absl::Status CheckBoundJob(absl::string_view field, absl::string_view job);

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
