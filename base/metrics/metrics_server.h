// Small read-only pages over HTTP: /metrics, and what else a daemon shows.
// Thread-compatible; answers on threads of its own.
#ifndef PACTRAIN_BASE_METRICS_METRICS_SERVER_H_
#define PACTRAIN_BASE_METRICS_METRICS_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/net.h"
#include "prometheus/collectable.h"

class CivetHandler;
class CivetServer;

namespace pactrain::base {

class MetricsServer {
 public:
  // What answers a GET; called from any thread.
  struct Page {
    std::string content_type;
    std::function<std::string()> body;
  };
  using Pages = std::map<std::string, Page>;  // By path.

  // /metrics of `metrics`, and `more` pages. A request that is not whole after
  // five seconds is given up, and so is an answer that nobody reads.
  // Unavailable: `listen` cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      HostPort listen, std::shared_ptr<prometheus::Collectable> metrics,
      Pages more = {});
  ~MetricsServer();

  // As bound, with the port that was chosen for port 0.
  const HostPort& address() const { return address_; }

 private:
  MetricsServer();

  HostPort address_;
  // Outlive the server, which calls them.
  std::vector<std::unique_ptr<CivetHandler>> handlers_;
  std::unique_ptr<CivetServer> server_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_METRICS_SERVER_H_
