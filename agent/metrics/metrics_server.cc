#include "agent/metrics/metrics_server.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/net.h"
#include "base/status_macros.h"

namespace pactrain::agent {
namespace {

constexpr size_t kThreads = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, std::shared_ptr<AgentMetrics> metrics) {
  ASSIGN_OR_RETURN(base::HostPort bound, base::ParseHostPort(address));
  if (bound.host == "localhost") bound.host = "127.0.0.1";
  std::unique_ptr<prometheus::Exposer> exposer;
  try {  // The library's way to say that it cannot listen.
    exposer = std::make_unique<prometheus::Exposer>(bound.ToString(), kThreads);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address,
                                               " for metrics: ", error.what()));
  }
  const std::vector<int> ports = exposer->GetListeningPorts();
  if (ports.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, " for metrics"));
  }
  bound.port = static_cast<uint16_t>(ports.front());
  exposer->RegisterCollectable(metrics);
  return std::unique_ptr<MetricsServer>(new MetricsServer(
      std::move(exposer), std::move(metrics), bound.ToString()));
}

}  // namespace pactrain::agent
