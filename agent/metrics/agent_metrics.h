// The agent's numbers for Prometheus: an immutable snapshot of what the driver
// knows, written out when somebody asks.
//
// Thread-safe: the driver publishes on its thread, the HTTP server collects on
// its own.
#ifndef PACTRAIN_AGENT_METRICS_AGENT_METRICS_H_
#define PACTRAIN_AGENT_METRICS_AGENT_METRICS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/core/status.h"
#include "base/certificate_life.h"
#include "base/connection_caps.h"
#include "base/mutex.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace pactrain::agent {

struct MetricsSnapshot {
  struct Peer {
    std::string site;
    bool is_own_site = false;
    uint64_t sent_bytes = 0;
    uint64_t received_bytes = 0;
    absl::Duration rtt;
    double goodput_bytes_per_second = 0;
    int bbr_connections = 0;
    absl::Duration busy;
  };
  std::string agent;
  std::string site;
  bool coordinator_connected = false;
  bool insecure_network = false;
  std::vector<Peer> peers;      // By site.
  base::RefusalCounts refused;  // Of data connections.
  uint64_t socket_refused = 0;  // Connections to the trainers' socket.
  std::optional<base::CertificateLives> certificates;  // None: plain text.
  uint64_t full_reserve_bytes = 0;
  std::optional<uint64_t> available_memory_bytes;  // Nothing: not known.
  std::vector<GroupStatus> groups;
};

class AgentMetrics : public prometheus::Collectable {
 public:
  explicit AgentMetrics(MetricsSnapshot first) { Publish(std::move(first)); }

  void Publish(MetricsSnapshot snapshot);
  std::vector<prometheus::MetricFamily> Collect() const override;
  // All families, as base::MetricsPage::Table().
  static std::string Table();

 private:
  mutable base::Mutex mutex_;
  std::shared_ptr<const MetricsSnapshot> snapshot_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_METRICS_AGENT_METRICS_H_
