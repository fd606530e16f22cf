// Serves the page over HTTP: what it is made of, from this program, and a
// stream of server-sent events for each viewer. With a token and certificates
// over TLS.
//
// Read-only. Each viewer has a thread and no queue: who reads slowly gets the
// newest state when it has read the one before, and who has not read it after
// five seconds is dropped. All threads are the server's own.
//
// Nobody keeps anybody out: where there are as many viewers as may be, the
// oldest of the source that has most gives way to the newcomer
// (ConnectionPlaces).
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_PAGE_PAGE_SERVER_H_
#define PACTRAIN_COORDINATOR_PAGE_PAGE_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/metrics/http_server.h"
#include "base/net.h"
#include "coordinator/page/page_board.h"

namespace pactrain::coordinator {

class PageServer {
 public:
  struct Options {
    base::HostPort listen;
    // Who does not show the token gets 401. Without one, what is not asked for
    // under the name of an address or "localhost" is refused, lest a stranger's
    // site makes a browser of this machine read the page for it.
    base::ReadersAccess access = {};
    int max_viewers = 200;  // At once.
  };
  // `refused` is called from any thread, with the address of who was refused,
  // or gave way, and why.
  using Refused =
      std::function<void(const std::string& source, const std::string& why)>;
  // `board` must outlive the server, and be stopped before it goes.
  // Fails as HttpServer::Start().
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(Options options,
                                                           PageBoard* board,
                                                           Refused refused);

  // As bound, with the port that was chosen for port 0.
  const base::HostPort& address() const { return http_->address(); }

 private:
  explicit PageServer(std::unique_ptr<base::HttpServer> http)
      : http_(std::move(http)) {}

  const std::unique_ptr<base::HttpServer> http_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_PAGE_SERVER_H_
