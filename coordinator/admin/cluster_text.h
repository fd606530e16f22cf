// What pactrain-admin says of agents and of the links between sites.
//
// Pure functions.
#ifndef PACTRAIN_COORDINATOR_ADMIN_CLUSTER_TEXT_H_
#define PACTRAIN_COORDINATOR_ADMIN_CLUSTER_TEXT_H_

#include <string>

#include "pactrain/v1/admin.pb.h"

namespace pactrain::coordinator {

// A line for each agent below a line of titles.
std::string AgentsTable(const v1::ListAgentsResponse& agents);
// A line for each direction of a link, as each agent has measured it.
std::string LinksTable(const v1::ListAgentsResponse& agents);
// What became of `evict`.
std::string EvictedText(const std::string& who, const v1::EvictResponse& done);
// What became of `drain`.
std::string DrainedText(const std::string& agent,
                        const v1::DrainResponse& done);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_CLUSTER_TEXT_H_
