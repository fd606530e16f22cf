#include "base/metrics/metrics_server.h"

#include <exception>
#include <vector>

#include "absl/strings/str_cat.h"

namespace pactrain::base {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    HostPort listen, std::shared_ptr<prometheus::Collectable> metrics) {
  if (listen.host == "localhost") listen.host = "127.0.0.1";
  const absl::Status cannot = absl::UnavailableError(absl::StrCat(
      "--listen-metrics: cannot listen on ", listen.ToString(),
      ": the port is taken or the address is not this machine's; give another "
      "one, or port 0 for any free one"));
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    exposer = std::make_unique<prometheus::Exposer>(listen.ToString(), 2);
  } catch (const std::exception&) {
    return cannot;  // The library says no more than that it could not start.
  }
  const std::vector<int> ports = exposer->GetListeningPorts();
  if (ports.empty()) return cannot;
  listen.port = static_cast<uint16_t>(ports.front());
  exposer->RegisterCollectable(metrics);
  return std::unique_ptr<MetricsServer>(new MetricsServer(
      std::move(listen), std::move(metrics), std::move(exposer)));
}

}  // namespace pactrain::base
