// Stands before an HTTP server of this process, whose library has a thread for
// each connection and no TLS that works: a request goes on to it over loopback
// once its head is whole, decrypted. So who sends it slowly costs a place here
// and no thread there.
//
// TLS 1.3 with this program's certificate, of which new files are taken, or
// plain text. Clients need none: what they may see the server behind asks them.
// Connections are bounded in number; handshake, head, and silence in time. All
// give way to a newcomer (ConnectionPlaces), also while they are answered, but
// those whom the server behind keeps.
//
// Thread-safe; works on a thread of its own.
#ifndef PACTRAIN_BASE_METRICS_HTTP_FRONT_H_
#define PACTRAIN_BASE_METRICS_HTTP_FRONT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/connection_places.h"
#include "base/net.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {

class HttpFront {
 public:
  struct Limits {
    int connections = 64;
    // Its head, TLS included; and each piece of the answer.
    absl::Duration request = absl::Seconds(5);
    absl::Duration silence = absl::Seconds(30);
  };
  // Passes connections to `listen` on to `target`; without `files` in plain
  // text.
  //   Unavailable: it cannot be listened on; the message is the system's.
  //   others:      as MakeTlsContext() of base/tls.
  static absl::StatusOr<std::unique_ptr<HttpFront>> Start(
      const HostPort& listen, const TlsFiles& files, const HostPort& target,
      const Limits& limits);
  ~HttpFront();

  // With the port that was chosen for port 0.
  const HostPort& address() const { return address_; }
  struct Client {
    std::string source;  // Its address; empty: there is none.
    ConnectionPlaces::Place place = 0;
  };
  // Of the connection that comes to the target from `port` of loopback.
  Client ClientOf(uint16_t port) const;
  // It gives way to nobody from now on. The server behind bounds how many do
  // not. Nothing if it is over.
  void Keep(ConnectionPlaces::Place place);
  // It is over, and what it has not read is lost.
  void Close(ConnectionPlaces::Place place);

 private:
  class Impl;
  HttpFront();

  HostPort address_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_HTTP_FRONT_H_
