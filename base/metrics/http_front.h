// TLS in front of an HTTP server of this process, whose library has none that
// works: what comes in goes on to it over loopback, decrypted.
//
// TLS 1.3 with this program's certificate, of which new files are taken.
// Clients need none: what they may see the server behind asks them. Connections
// are bounded in number, handshakes and silence in time; who comes on top is
// closed.
//
// Thread-safe; works on a thread of its own.
#ifndef PACTRAIN_BASE_METRICS_TLS_FRONT_H_
#define PACTRAIN_BASE_METRICS_TLS_FRONT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/net.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {

class TlsFront {
 public:
  struct Limits {
    int connections = 64;
    absl::Duration handshake = absl::Seconds(5);
    absl::Duration silence = absl::Seconds(30);
  };
  // Passes connections to `listen` on to `target`.
  //   Unavailable: it cannot be listened on; the message is the system's.
  //   others:      as MakeTlsContext() of base/tls.
  static absl::StatusOr<std::unique_ptr<TlsFront>> Start(const HostPort& listen,
                                                         const TlsFiles& files,
                                                         const HostPort& target,
                                                         const Limits& limits);
  ~TlsFront();

  // With the port that was chosen for port 0.
  const HostPort& address() const { return address_; }
  // Of the connection that comes to the target from `port` of loopback: the
  // address of the client; empty: there is none.
  std::string SourceOf(uint16_t port) const;

 private:
  class Impl;
  TlsFront();

  HostPort address_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_TLS_FRONT_H_
