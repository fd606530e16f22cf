// The coordinator's gRPC server: agents' streams, admin, health checking and
// reflection on one port. TLS 1.3 with certificates of both sides (Access says
// who may call what); in plain text without: bind loopback then (base/net).
//
// Thread-safe.
#ifndef PACTRAIN_COORDINATOR_RPC_SERVER_H_
#define PACTRAIN_COORDINATOR_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/net.h"
#include "base/tls/tls_files.h"
#include "coordinator/driver/driver.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/admin_service.h"
#include "coordinator/rpc/agent_stream.h"

namespace pactrain::coordinator {

class Server {
 public:
  // Binds, starts the driver's timer and serves. `driver` must outlive the
  // server. Unavailable: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const base::HostPort& listen, const base::TlsFiles& tls, Driver* driver);
  ~Server();  // Stop().

  // As bound, with the port that was chosen for port 0.
  const base::HostPort& address() const { return address_; }
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

  Server(bool tls, Driver* driver)
      : driver_(driver),
        access_(tls),
        agents_(driver, &access_),
        admin_(driver, &access_) {}

  Driver* const driver_;
  Access access_;
  AgentService agents_;
  AdminService admin_;
  base::HostPort address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_SERVER_H_
