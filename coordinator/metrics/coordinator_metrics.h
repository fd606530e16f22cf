// The coordinator's metric families, made from a snapshot at each scrape.
//
// Thread-safe: Collect() takes a snapshot of its own.
#ifndef PACTRAIN_COORDINATOR_METRICS_COORDINATOR_METRICS_H_
#define PACTRAIN_COORDINATOR_METRICS_COORDINATOR_METRICS_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/certificate_life.h"
#include "base/connection_caps.h"
#include "base/rpc_counts.h"
#include "coordinator/core/snapshot.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace pactrain::coordinator {

// Of the coordinator's listener.
struct Connections {
  int open = 0;
  base::RefusalCounts refused;
  std::optional<base::CertificateLives> certificates;  // None: plain text.
};

class CoordinatorMetrics : public prometheus::Collectable {
 public:
  // Pairs of sites per group that are exported; how many are left out is
  // exported, too. A chain or tree of 32 sites has 62.
  static constexpr size_t kMaxLinks = 64;
  // Groups of each that are exported: that ended in order, and that failed. Of
  // more those that ended last; the number of all is exported.
  static constexpr size_t kMaxEnded = 100;

  // All must be thread-safe.
  CoordinatorMetrics(std::function<StateSnapshot()> snapshot,
                     std::function<Connections()> connections,
                     std::function<base::RpcCounts()> calls,
                     bool insecure_network)
      : snapshot_(std::move(snapshot)),
        connections_(std::move(connections)),
        calls_(std::move(calls)),
        insecure_network_(insecure_network) {}

  std::vector<prometheus::MetricFamily> Collect() const override;
  // All families, as base::MetricsPage::Table().
  static std::string Table();

 private:
  const std::function<StateSnapshot()> snapshot_;
  const std::function<Connections()> connections_;
  const std::function<base::RpcCounts()> calls_;
  const bool insecure_network_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_METRICS_COORDINATOR_METRICS_H_
