// Small read-only pages over HTTP: /metrics, and what else a daemon shows. With
// a token only to who shows it, and then over TLS where there are certificates.
// Thread-compatible; answers on threads of its own.
#ifndef PACTRAIN_BASE_METRICS_METRICS_SERVER_H_
#define PACTRAIN_BASE_METRICS_METRICS_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/metrics/http_server.h"
#include "base/net.h"
#include "prometheus/collectable.h"

namespace pactrain::base {

class MetricsServer {
 public:
  // What answers a GET; called from any thread.
  struct Page {
    std::string content_type;
    std::function<std::string()> body;
  };
  using Pages = std::map<std::string, Page>;  // By path.
  // Who was refused what, and why; called from any thread.
  using OnRefused = std::function<void(
      const std::string& source, const std::string& path, absl::string_view)>;

  // /metrics of `metrics`, `more` pages, and /healthz: for whoever asks,
  // without a token, that the daemon answers, and nothing else. Fails as
  // HttpServer::Start().
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      HostPort listen, std::shared_ptr<prometheus::Collectable> metrics,
      Pages more = {}, const ReadersAccess& access = {},
      OnRefused on_refused = {});

  // As bound, with the port that was chosen for port 0.
  const HostPort& address() const { return http_->address(); }

 private:
  explicit MetricsServer(std::unique_ptr<HttpServer> http)
      : http_(std::move(http)) {}

  const std::unique_ptr<HttpServer> http_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_METRICS_SERVER_H_
