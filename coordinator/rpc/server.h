// The coordinator's gRPC server: agents' streams, admin, health checking and
// reflection on one port. TLS 1.3 with certificates of both sides (Access says
// who may call what); in plain text without: bind loopback then (base/net).
//
// gRPC gets connections from a listener of ours, which bounds them before they
// have said a word (base/rpc/capped_listener.h); with TLS it then lets nobody
// as far as HTTP/2 who has not shown a certificate.
//
// Thread-safe.
#ifndef PACTRAIN_COORDINATOR_RPC_SERVER_H_
#define PACTRAIN_COORDINATOR_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/connection_caps.h"
#include "base/mutex.h"
#include "base/net.h"
#include "base/repeat_filter.h"
#include "base/rpc/capped_listener.h"
#include "base/rpc_counts.h"
#include "base/tls/tls_files.h"
#include "base/tls/tls_source.h"
#include "coordinator/driver/driver.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/admin_service.h"
#include "coordinator/rpc/agent_stream.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {

class Server {
 public:
  // What all connections together, and one source's, may be.
  static constexpr base::ConnectionCaps::Limits kCaps = {
      .total = protocol::kMaxConnections,
      .per_source = protocol::kMaxConnectionsPerSource,
      .from_loopback = protocol::kMaxConnectionsFromLoopback};

  // How many an identity may open or send at once, and in each second after
  // them. Who wants more is shut out for a while. Bytes are all that comes, for
  // each frame costs time, also one that belongs to no call, and 4 KiB for each
  // message. An agent keeps within it by itself (WordQueue). With 64 trainers
  // each word of a job is 17 KiB, with their votes 21 to 32 KiB: 4 MiB when it
  // comes back with 100 jobs.
  struct Budget {
    int at_once;
    double per_second;
  };
  struct Budgets {
    Budget connections, calls, bytes;
    base::CappedListener::OpenLimits open;
  };
  static constexpr Budgets kBudgets = {
      .connections = {128, 32},
      .calls = {256, 100},
      .bytes = {protocol::kMaxBytesAtOnce, protocol::kMaxBytesPerSecond},
      .open = {32, 128}};
  static constexpr absl::Duration kShutOut = absl::Seconds(10);

  // What is in force; asked at each tick of the driver's timer.
  struct Sources {
    // Null: there is no policy file.
    std::function<std::shared_ptr<const Grants>()> grants;
    // Null: CAs take nothing back.
    std::function<std::shared_ptr<const base::RevokedCertificates>()> revoked;
  };

  // Binds, starts the driver's timer and serves. `driver` must outlive the
  // server.
  //   Unavailable: the address cannot be bound.
  //   others:      as MakeTlsContext() of base/tls.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const base::HostPort& listen, const base::TlsFiles& tls, Driver* driver,
      const base::ConnectionCaps::Limits& caps = kCaps, Sources sources = {},
      const Budgets& budgets = kBudgets);
  ~Server();  // Stop().

  // As bound, with the port that was chosen for port 0.
  const base::HostPort& address() const { return listener_->address(); }
  int open_connections() const { return listener_->open(); }
  base::RefusalCounts refused_connections() const {
    return listener_->refused();
  }
  // Of the certificate that new connections are shown; none: plain text.
  std::optional<base::CertificateLives> certificates() const;
  base::RpcCounts calls() const { return calls_.Get(); }
  // Ends all calls, within two seconds, and stops serving. Idempotent.
  void Stop();

 private:
  class AgentService : public v1::Coordinator::CallbackService {
   public:
    AgentService(Driver* driver, Access* access)
        : driver_(driver), access_(access) {}
    grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>*
    AgentStream(grpc::CallbackServerContext* context) override {
      return coordinator::AgentStream::Serve(driver_, access_, context);
    }

   private:
    Driver* const driver_;
    Access* const access_;
  };

  Server(bool tls, Driver* driver, Sources sources)
      : driver_(driver),
        sources_(std::move(sources)),
        access_(tls,
                [driver](protocol::AuditEvent event) {
                  driver->OnRefused(std::move(event));
                }),
        agents_(driver, &access_),
        admin_(driver, &access_, [this] { return listener_->connected(); }) {}

  // What the driver's timer does here.
  void Tick();
  // Who may not take part in a job any more is out, also whose agent says
  // nothing; so is who may not be of its site.
  void Sweep();
  // Logs and audits that a connection got no further than this.
  void OnRefused(const std::string& source, const protocol::Caller& caller,
                 const std::string& why);

  Driver* const driver_;
  const Sources sources_;
  Access access_;
  AgentService agents_;
  AdminService admin_;
  mutable base::Mutex mu_;
  // gRPC reads the files by itself and says nothing: this one is looked at for
  // how long they hold, and for what is wrong with new ones. Null: plain text.
  std::unique_ptr<base::TlsSource> tls_ ABSL_GUARDED_BY(mu_);
  base::RepeatFilter told_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<base::CappedListener> listener_;
  base::RpcCounter calls_;
  // Of the timer's thread.
  uint64_t swept_ = 0;  // By this version of `access_`; 0: not yet.
  absl::Duration sweep_again_ = absl::InfiniteDuration();
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_SERVER_H_
