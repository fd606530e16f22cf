// One AgentStream call to the coordinator, from its first byte to its end.
//
// Thread-safe: gRPC's threads drive it, Send() and Cancel() come from the
// agent's. It keeps itself alive until gRPC is done with it, which after
// Cancel() is soon.
#ifndef PACTRAIN_AGENT_RPC_AGENT_STREAM_H_
#define PACTRAIN_AGENT_RPC_AGENT_STREAM_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "pactrain/v1/agent.grpc.pb.h"
#include "protocol/control.h"

namespace pactrain::agent {

class AgentStream : private grpc::ClientBidiReactor<v1::AgentMessage,
                                                    v1::CoordinatorMessage> {
 public:
  // Called on gRPC's threads, never under a lock, one at a time.
  struct Callbacks {
    std::function<void(protocol::CoordinatorMessage)> on_message;
    // The last one. OK: the coordinator ended the stream.
    std::function<void(absl::Status)> on_done;
  };
  // Messages that wait to be sent; a coordinator that is so far behind is as
  // good as gone.
  static constexpr size_t kMaxUnsent = 4096;

  static std::shared_ptr<AgentStream> Start(v1::Coordinator::Stub* stub,
                                            Callbacks callbacks);

  // What a broken stream has not sent is lost. Returns its bytes.
  size_t Send(const protocol::AgentMessage& message);
  void Cancel() { context_.TryCancel(); }

 private:
  explicit AgentStream(Callbacks callbacks)
      : callbacks_(std::move(callbacks)) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const Callbacks callbacks_;
  grpc::ClientContext context_;
  std::shared_ptr<AgentStream> self_;  // Until OnDone().
  v1::CoordinatorMessage incoming_;    // Only between StartRead and OnReadDone.
  absl::Status refused_;               // Why we ended the stream ourselves.

  // Held while a write is started, too: none may start once closed_. gRPC runs
  // no callback from within StartWrite().
  base::Mutex mutex_;
  // The front one is being written.
  std::deque<v1::AgentMessage> unsent_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_RPC_AGENT_STREAM_H_
