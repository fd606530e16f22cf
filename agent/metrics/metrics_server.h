// GET /metrics over HTTP.
//
// Thread-compatible; answers on threads of its own.
#ifndef PACTRAIN_AGENT_METRICS_METRICS_SERVER_H_
#define PACTRAIN_AGENT_METRICS_METRICS_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/metrics/agent_metrics.h"
#include "prometheus/exposer.h"

namespace pactrain::agent {

class MetricsServer {
 public:
  // `address`: "host:port", port 0 for any.
  //   InvalidArgument: it is not one.
  //   Unavailable:     it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& address, std::shared_ptr<AgentMetrics> metrics);

  // With the port that was taken.
  const std::string& address() const { return address_; }

 private:
  MetricsServer(std::unique_ptr<prometheus::Exposer> exposer,
                std::shared_ptr<AgentMetrics> metrics, std::string address)
      : metrics_(std::move(metrics)),
        exposer_(std::move(exposer)),
        address_(std::move(address)) {}

  const std::shared_ptr<AgentMetrics> metrics_;  // The exposer holds it weakly.
  const std::unique_ptr<prometheus::Exposer> exposer_;
  const std::string address_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_METRICS_METRICS_SERVER_H_
