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
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/metrics/tls_front.h"
#include "base/net.h"
#include "base/tls/tls_files.h"
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
  // Who was refused what, and why; called from any thread.
  using OnRefused = std::function<void(
      const std::string& source, const std::string& path, absl::string_view)>;
  // Who may read.
  struct Access {
    std::string token_file;  // Empty: everybody, in plain text.
    TlsFiles tls;
    OnRefused on_refused;
  };

  // /metrics of `metrics`, and `more` pages. A request that is not whole after
  // five seconds is given up, and so is an answer that nobody reads.
  //   Unavailable: `listen` cannot be listened on.
  //   others:      as MakeTlsContext() of base/tls.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      HostPort listen, std::shared_ptr<prometheus::Collectable> metrics,
      Pages more = {}, Access access = {});
  ~MetricsServer();

  // As bound, with the port that was chosen for port 0.
  const HostPort& address() const { return address_; }

 private:
  MetricsServer();

  HostPort address_;
  std::unique_ptr<TlsFront> front_;  // Outlives who asks it for sources.
  // Outlive the server, which calls them.
  std::vector<std::unique_ptr<CivetHandler>> handlers_;
  std::unique_ptr<CivetServer> server_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_METRICS_SERVER_H_
