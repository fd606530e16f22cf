// What the agent of this node says of itself.
#ifndef PACTRAIN_COORDINATOR_ADMIN_AGENT_PROBE_H_
#define PACTRAIN_COORDINATOR_ADMIN_AGENT_PROBE_H_

#include <string>

#include "absl/status/statusor.h"
#include "trainer/wire.h"

namespace pactrain::coordinator {

// Asks at the agent's Unix socket; blocks for at most a few seconds.
//   NotFound:           there is no such file.
//   PermissionDenied:   it is another user's.
//   Unavailable:        nobody answers there.
//   FailedPrecondition: who answers is no agent, or one of an older release.
absl::StatusOr<wire::About> AskAgent(const std::string& path);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_AGENT_PROBE_H_
