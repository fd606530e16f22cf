// Tells which connections of a gRPC server finished their TLS handshake, which
// failed in it, and why.
//
// gRPC says the latter to its log alone, and not who it was. But it makes
// OpenSSL's state of a connection on the thread that hands it the socket, and
// frees it once the handshake has failed or the connection has ended: both are
// told to whoever has data of his own in that state. What the state says then
// is the reason. Its messages are told as well: the client's last one comes
// after its certificate and its signature were checked, and after it there are
// none but changes of keys.
//
// Thread-safe. A process may have several.
#ifndef PACTRAIN_BASE_RPC_HANDSHAKE_WATCH_H_
#define PACTRAIN_BASE_RPC_HANDSHAKE_WATCH_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/connection_places.h"
#include "base/rpc/credentials.h"

namespace pactrain::base {

class HandshakeWatch {
 public:
  struct Options {
    absl::Duration limit;  // After which gRPC gives a handshake up.
    // As given to the server's credentials.
    CheckPeer check;
    // All on gRPC's threads or the caller's of Accept(); must not use this
    // watch.
    std::function<void(ConnectionPlaces::Place place, CertificateFacts facts)>
        on_proven;
    // A proven one has changed its keys (TLS 1.3's KeyUpdate).
    std::function<void(const CertificateFacts& facts)> on_key_update;
    std::function<void(const std::string& source, const std::string& why)>
        on_failed;
  };
  struct Connection {
    std::string source;
    ConnectionPlaces::Place place = 0;
    // Set by who ends it and has told why: its handshake is no failed one.
    std::shared_ptr<std::atomic<bool>> ended;
  };

  explicit HandshakeWatch(Options options);
  ~HandshakeWatch();  // Stop().

  // Runs `hand_over`, which gives gRPC this connection.
  void Accept(const Connection& connection,
              const std::function<void()>& hand_over);
  // Neither is called any more, and no call is under way. Idempotent.
  void Stop();

 private:
  friend struct HandshakeTag;
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_HANDSHAKE_WATCH_H_
