// GET /metrics over HTTP. Thread-compatible; answers on threads of its own.
#ifndef PACTRAIN_BASE_METRICS_METRICS_SERVER_H_
#define PACTRAIN_BASE_METRICS_METRICS_SERVER_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/net.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"

namespace pactrain::base {

class MetricsServer {
 public:
  // Unavailable: `listen` cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      HostPort listen, std::shared_ptr<prometheus::Collectable> metrics);

  // As bound, with the port that was chosen for port 0.
  const HostPort& address() const { return address_; }

 private:
  MetricsServer(HostPort address,
                std::shared_ptr<prometheus::Collectable> metrics,
                std::unique_ptr<prometheus::Exposer> exposer)
      : address_(std::move(address)),
        metrics_(std::move(metrics)),
        exposer_(std::move(exposer)) {}

  const HostPort address_;
  const std::shared_ptr<prometheus::Collectable>
      metrics_;  // Held weakly below.
  const std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_METRICS_SERVER_H_
