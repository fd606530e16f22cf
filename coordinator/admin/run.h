// What pactrain-admin does.
#ifndef PACTRAIN_COORDINATOR_ADMIN_RUN_H_
#define PACTRAIN_COORDINATOR_ADMIN_RUN_H_

#include <ostream>

#include "absl/status/status.h"
#include "coordinator/admin/admin_client.h"
#include "coordinator/admin/command.h"

namespace pactrain::coordinator {

// Does what `command` says and writes the answer. "watch" returns with an error
// only; that it waits for a coordinator that is gone it says to `err`. Errors:
// the client's.
absl::Status Run(const Command& command, AdminClient& client, std::ostream& out,
                 std::ostream& err);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_RUN_H_
