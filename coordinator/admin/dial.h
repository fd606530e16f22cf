// Which addresses can be dialled from here.
#ifndef PACTRAIN_COORDINATOR_ADMIN_DIAL_H_
#define PACTRAIN_COORDINATOR_ADMIN_DIAL_H_

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace pactrain::coordinator {

// Connects to each "host:port" and hangs up; all at once, so that it takes no
// longer than `limit` (but for the resolution of names).
//   InvalidArgument: not an address.   NotFound: no such host.
//   Unavailable:     refused, or no answer.
std::map<std::string, absl::Status> DialAll(
    const std::set<std::string>& addresses, absl::Duration limit);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_DIAL_H_
