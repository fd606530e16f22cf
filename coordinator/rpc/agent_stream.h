// One AgentStream call: wire messages in to the driver, its messages out.
//
// Messages to the agent wait in a bounded queue; an agent that does not read
// loses its stream. A malformed message ends the stream, naming the field.
//
// Thread-safe: gRPC's callbacks and the driver meet here.
#ifndef PACTRAIN_COORDINATOR_RPC_AGENT_STREAM_H_
#define PACTRAIN_COORDINATOR_RPC_AGENT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "coordinator/driver/driver.h"
#include "coordinator/rpc/access.h"
#include "pactrain/v1/agent.grpc.pb.h"

namespace pactrain::coordinator {

grpc::Status ToGrpc(const absl::Status& status);

class AgentStream
    : public grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>,
      public Driver::Stream {
 public:
  // Messages that may wait for one agent.
  static constexpr size_t kMaxQueue = 4096;

  // Begins to serve a call. The stream owns itself until gRPC is done with it;
  // `driver` and `access` must outlive the server.
  static AgentStream* Serve(Driver* driver, Access* access,
                            grpc::CallbackServerContext* context);

  void Send(const protocol::CoordinatorMessage& message) override;
  void Close(const absl::Status& status) override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  AgentStream(Driver* driver, Access* access,
              grpc::CallbackServerContext* context)
      : driver_(driver), access_(access), context_(context) {}

  // Asks for the right to join, then the driver for a place.
  absl::Status Open();

  // Opens the next read unless the stream is closed. Ends one of reading_.
  void ReadNext();
  // Hands the message in in_ to the driver.
  absl::Status Handle();
  // Refuses a trainer that the agent may not run, and drops what else it says
  // of such a job. False: it may.
  bool Refuses(const protocol::AgentMessage& message);
  // gRPC may be called for the next write, or to finish; does at most one.
  void Proceed();

  Driver* const driver_;
  Access* const access_;
  grpc::CallbackServerContext* const context_;
  Peer peer_;         // Who the certificate says it is.
  std::string site_;  // As its hello says.
  StreamId id_ = 0;
  std::shared_ptr<AgentStream> self_;  // Until OnDone().
  v1::AgentMessage in_;                // Belongs to the read that is open.
  v1::CoordinatorMessage out_;         // Belongs to the write that is open.

  base::Mutex mu_;
  std::deque<v1::CoordinatorMessage> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  // Calls that may still start a read; Finish() must wait for them.
  int reading_ ABSL_GUARDED_BY(mu_) = 1;
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_AGENT_STREAM_H_
