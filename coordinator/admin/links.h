// What `pactrain doctor` says of the links between sites.
#ifndef PACTRAIN_COORDINATOR_ADMIN_LINKS_H_
#define PACTRAIN_COORDINATOR_ADMIN_LINKS_H_

#include "coordinator/admin/finding.h"
#include "pactrain/v1/admin.pb.h"

namespace pactrain::coordinator {

// A finding for each direction between two sites with connected agents that was
// measured, in the order of their names. A warning: it is much slower than
// --site-rates says at both its ends, or, without these, than most others are;
// or only the other direction has a rate.
Findings CheckLinks(const v1::ListAgentsResponse& answer);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_LINKS_H_
