#include "base/metrics/metrics_server.h"

#include <exception>
#include <vector>

#include "absl/strings/str_cat.h"

namespace pactrain::base {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    HostPort listen, std::shared_ptr<prometheus::Collectable> metrics) {
  if (listen.host == "localhost") listen.host = "127.0.0.1";
  const std::string cannot =
      absl::StrCat("cannot listen on ", listen.ToString(), " for metrics");
  std::unique_ptr<prometheus::Exposer> exposer;
  try {  // The library's way to say that it cannot listen.
    exposer = std::make_unique<prometheus::Exposer>(listen.ToString(), 2);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(cannot, ": ", error.what()));
  }
  const std::vector<int> ports = exposer->GetListeningPorts();
  if (ports.empty()) return absl::UnavailableError(cannot);
  listen.port = static_cast<uint16_t>(ports.front());
  exposer->RegisterCollectable(metrics);
  return std::unique_ptr<MetricsServer>(new MetricsServer(
      std::move(listen), std::move(metrics), std::move(exposer)));
}

}  // namespace pactrain::base
