// An HTTP server on an address, behind a front that has TLS if there are
// certificates: what /metrics and the page have in common. Who asks is found
// behind the front as well.
// Thread-compatible; answers on threads of its own.
#ifndef PACTRAIN_BASE_METRICS_HTTP_SERVER_H_
#define PACTRAIN_BASE_METRICS_HTTP_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metrics/http_front.h"
#include "base/net.h"
#include "base/tls/tls_files.h"

class CivetHandler;
class CivetServer;
struct mg_connection;

namespace pactrain::base {

// Who may read.
struct ReadersAccess {
  std::string token_file = {};  // Empty: everybody, in plain text.
  TlsFiles tls = {};            // Without a token not used.

  bool speaks_tls() const { return !token_file.empty() && tls.given(); }
};

// Where to listen for readers, after a look at their token. Names are those of
// the settings, and so begin what is wrong with them.
//   InvalidArgument: as ReadToken(), CheckListenAddress().
absl::StatusOr<HostPort> CheckReadersAddress(const std::string& listen_name,
                                             const std::string& listen,
                                             const std::string& token_name,
                                             Protection without_token,
                                             const ReadersAccess& access,
                                             bool insecure);

class HttpServer {
 public:
  struct Options {
    std::string setting;  // That `listen` is of, for messages.
    HostPort listen;
    ReadersAccess access = {};
    int threads = 4;  // Answers at once; others wait for one.
    HttpFront::Limits front = {};
  };
  // A request whose head is not whole after five seconds is given up, and so is
  // an answer that nobody reads.
  //   Unavailable: `listen` cannot be listened on.
  //   others:      as MakeTlsContext() of base/tls.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const Options& options);
  ~HttpServer();

  // Takes what answers under `path`, for as long as the server is there.
  void Add(const std::string& path, std::unique_ptr<CivetHandler> handler);

  // As bound, with the port that was chosen for port 0.
  const HostPort& address() const { return address_; }
  // Who asks. Thread-safe, as the others.
  HttpFront::Client ClientOf(const mg_connection* connection) const;
  // As those of HttpFront.
  void Keep(ConnectionPlaces::Place place);
  void Close(ConnectionPlaces::Place place);

 private:
  HttpServer();

  HostPort address_;
  std::unique_ptr<HttpFront> front_;  // Outlives who asks it for sources.
  // Outlive the server, which calls them.
  std::vector<std::unique_ptr<CivetHandler>> handlers_;
  std::unique_ptr<CivetServer> server_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_HTTP_SERVER_H_
