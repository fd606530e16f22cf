// Where Prometheus finds the agents: the answer of its http_sd.
#ifndef PACTRAIN_COORDINATOR_METRICS_AGENT_TARGETS_H_
#define PACTRAIN_COORDINATOR_METRICS_AGENT_TARGETS_H_

#include <string>

#include "coordinator/core/snapshot.h"

namespace pactrain::coordinator {

// JSON: a target for each agent that has a stream and told where its /metrics
// is, with labels `agent` and `site`.
std::string AgentTargets(const StateSnapshot& snapshot);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_METRICS_AGENT_TARGETS_H_
