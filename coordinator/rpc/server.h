// The coordinator's gRPC server: agents' streams, admin, health checking and
// reflection on one port. Plain text: bind loopback (base/net).
//
// Thread-safe.
#ifndef PACTRAIN_COORDINATOR_RPC_SERVER_H_
#define PACTRAIN_COORDINATOR_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/net.h"
#include "coordinator/driver/driver.h"
#include "coordinator/rpc/admin_service.h"
#include "coordinator/rpc/agent_stream.h"

namespace pactrain::coordinator {

class Server {
 public:
  // Binds, starts the driver's timer and serves. `driver` must outlive the
  // server. Unavailable: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const base::HostPort& listen, Driver* driver);
  ~Server();  // Stop().

  // As bound, with the port that was chosen for port 0.
  const base::HostPort& address() const { return address_; }
  // Ends all calls, within two seconds, and stops serving. Idempotent.
  void Stop();

 private:
  class AgentService : public v1::Coordinator::CallbackService {
   public:
    explicit AgentService(Driver* driver) : driver_(driver) {}
    grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>*
    AgentStream(grpc::CallbackServerContext* context) override {
      return coordinator::AgentStream::Serve(driver_, context);
    }

   private:
    Driver* const driver_;
  };

  explicit Server(Driver* driver)
      : driver_(driver), agents_(driver), admin_(driver) {}

  Driver* const driver_;
  AgentService agents_;
  AdminService admin_;
  base::HostPort address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_SERVER_H_
