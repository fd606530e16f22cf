// Accepts a gRPC server's connections in gRPC's place and counts them.
//
// gRPC 1.51 accepts without a limit and before anybody has proved who they are
// (CVE-2023-4785). Here a connection beyond the caps is closed before gRPC
// knows of it, unless a stranger can give way to it (ConnectionPlaces), and a
// process without free descriptors pauses instead of spinning. The others are
// handed to gRPC as they are; a duplicate of the socket tells when gRPC has
// closed its own (which it shuts down first, so the duplicate keeps nothing
// alive).
//
// Who fails in the TLS handshake is refused as well (HandshakeWatch). Who has
// finished it is no stranger any more; without TLS nobody is one. No connection
// outlives its certificate by more than kLookEvery, or the leave to stay.
//
// Each identity has a budget of connections, one of calls and one of bytes.
// gRPC 1.51 bounds calls that are open at once, and not those that are opened
// and taken back (CVE-2023-44487), and no frames that belong to no call. So who
// exceeds one loses all connections and what lies unread in them, and gets none
// for a while. Bytes are a TrafficMeter's, counted every kLookEvery and at a
// connection's end: with streams, for TakeCall() is told of none whose headers
// gRPC refuses. Messages and TLS's KeyUpdate count as more than their bytes as
// well. Who can make identities of any number has no more than kIdentities of
// them: those of one maker share such budgets.
//
// Thread-safe. `on_refused` is called on the listener's own thread or gRPC's.
#ifndef PACTRAIN_BASE_RPC_CAPPED_LISTENER_H_
#define PACTRAIN_BASE_RPC_CAPPED_LISTENER_H_

#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/connection_caps.h"
#include "base/connection_places.h"
#include "base/identity_budgets.h"
#include "base/mutex.h"
#include "base/net.h"
#include "base/rpc/credentials.h"
#include "base/rpc/handshake_watch.h"
#include "base/rpc/traffic_meter.h"
#include "base/tls/certificate_facts.h"

namespace pactrain::base {

class CappedListener {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
  // `source` is an address. `facts`: null unless a certificate has proven them.
  using OnRefused = std::function<void(const std::string& source,
                                       const CertificateFacts* facts,
                                       const absl::Status& why)>;

  static constexpr absl::Duration kLookEvery = absl::Milliseconds(250);
  static constexpr int kIdentities = 8;
  // gRPC needs 80 µs for one that comes alone, and answers it with two frames.
  static constexpr uint64_t kBytesOfMessage = 4096;
  // 12 µs, and no client of gRPC asks for one.
  static constexpr uint64_t kBytesOfKeyUpdate = 2048;

  // Connections at once. gRPC keeps what has come of a message until all of it
  // has, as long as the client likes, on each stream of each connection.
  struct OpenLimits {
    int of_identity = 0, of_maker = 0;
  };

  struct Options {
    ConnectionCaps::Limits limits;
    bool tls = false;
    // Of the server: what it gives a handshake, and whom it takes.
    absl::Duration handshake_limit;
    CheckPeer check;
    // Whether an open connection may stay; asked anew when the version differs.
    // On the listener's own thread.
    std::function<absl::Status(const CertificateFacts& facts)> stays;
    std::function<uint64_t()> stays_version;
    // Of one identity; with TLS only.
    IdentityBudgets::Limits connections, calls, bytes;
    OpenLimits open;
    // Who can make as many identities like this as he likes; "": nobody whom
    // this is to bound.
    std::function<std::string(const CertificateFacts& facts)> maker;
    OnRefused on_refused;
  };

  // Binds; connections wait until Start(). Unavailable: it cannot be listened
  // on; the message is the system's.
  static absl::StatusOr<std::unique_ptr<CappedListener>> Open(
      const HostPort& listen, Options options);
  ~CappedListener();  // Stop().

  // With the port that was chosen for port 0.
  const HostPort& address() const { return address_; }
  // REQUIRES: the server that `acceptor` belongs to has started.
  void Start(std::unique_ptr<Acceptor> acceptor);
  // Takes no more connections. To be called before the server is shut down.
  void Stop();

  // Counts a call of whom this certificate is. ResourceExhausted: it is one too
  // many, and its connections are over.
  absl::Status TakeCall(const CertificateFacts& facts);
  // The same of a message of a call, among the bytes.
  absl::Status TakeMessage(const CertificateFacts& facts);

  // Whose certificates open connections have, as far as it is known.
  std::vector<CertificateFacts> connected() const;
  RefusalCounts refused() const;
  int open() const;

 private:
  // An open connection.
  struct Watched {
    ConnectionPlaces::Place place = 0;
    std::shared_ptr<std::atomic<bool>> ended;
  };

  // Of identities, and of those who make them.
  struct Budgets {
    explicit Budgets(IdentityBudgets::Limits limits);
    IdentityBudgets own, makers;
  };

  // Of an open connection.
  struct Proven {
    std::string source;
    std::shared_ptr<const CertificateFacts> facts;  // Null: not checked yet.
    std::string who, maker;                         // Whose budgets it uses up.
    std::optional<uint64_t> version;  // By which it may stay; none: not asked.
  };

  explicit CappedListener(Options options);
  absl::Status Listen(const HostPort& wanted);
  void Loop();
  // Whether to go on accepting at once.
  bool AcceptOne();
  void Admit(int fd, const std::string& source, const std::string& peer);
  void MakeGiveWay(const ConnectionPlaces::GaveWay& gave_way);
  // Ends those that may not stay.
  void LookAtOpen();
  // What has come on these, by their duplicates, or on all; of those that are
  // proven.
  void CountBytes(std::optional<int> only = std::nullopt);
  // gRPC sees that it is over; so does the thread, which then forgets it.
  // What was said to the other side before still gets there, unless `at_once`:
  // then what it said last is not heard either.
  void End(ConnectionPlaces::Place place, bool at_once = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnProven(ConnectionPlaces::Place place, CertificateFacts facts);
  // Of this connection, which counts: whether it may be open beside the others.
  absl::Status CheckOpen(const Proven& proven) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnKeyUpdate(const CertificateFacts& facts);
  // Takes turns; once there are none, ends all connections of that identity.
  absl::Status Take(Budgets CappedListener::*budgets,
                    const CertificateFacts& facts, uint64_t turns = 1);
  void Release(ConnectionPlaces::Place place);
  void Refuse(const std::string& source, Refusal refusal,
              const absl::Status& why, const CertificateFacts* facts = nullptr);
  void Forget(int watched);
  void Listening(bool on);

  const bool tls_;
  const OpenLimits open_limits_;
  const std::function<absl::Status(const CertificateFacts&)> stays_;
  const std::function<uint64_t()> stays_version_;
  const std::function<std::string(const CertificateFacts&)> maker_;
  const OnRefused on_refused_;
  HostPort address_;
  int listener_ = -1, epoll_ = -1, wake_ = -1;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
  TrafficMeter meter_;  // Of the thread, and of Stop() once that has ended.

  mutable Mutex mu_;
  std::map<int, Watched> watched_ ABSL_GUARDED_BY(mu_);  // By duplicates.
  Budgets connections_ ABSL_GUARDED_BY(mu_);
  Budgets calls_ ABSL_GUARDED_BY(mu_);
  Budgets bytes_ ABSL_GUARDED_BY(mu_);
  ConnectionPlaces places_ ABSL_GUARDED_BY(mu_);
  std::map<ConnectionPlaces::Place, Proven> proven_ ABSL_GUARDED_BY(mu_);
  RefusalCounts refused_ ABSL_GUARDED_BY(mu_);
  HandshakeWatch handshakes_;  // The first to go: it uses the others.
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_CAPPED_LISTENER_H_
