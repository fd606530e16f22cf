#include "agent/rpc/agent_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "protocol/proto_convert.h"

namespace pactrain::agent {

std::shared_ptr<AgentStream> AgentStream::Start(v1::Coordinator::Stub* stub,
                                                Callbacks callbacks) {
  auto stream =
      std::shared_ptr<AgentStream>(new AgentStream(std::move(callbacks)));
  stream->self_ = stream;
  stub->async()->AgentStream(&stream->context_, stream.get());
  stream->StartRead(&stream->incoming_);
  // Send() starts writes from outside of callbacks as long as the call is open.
  stream->AddHold();
  stream->StartCall();
  return stream;
}

size_t AgentStream::Send(const protocol::AgentMessage& message) {
  v1::AgentMessage proto = protocol::ToProto(message);
  const size_t bytes = proto.ByteSizeLong();
  base::MutexLock lock(&mutex_);
  if (closed_) return bytes;
  if (unsent_.size() >= kMaxUnsent) {
    Cancel();
    return bytes;
  }
  unsent_.push_back(std::move(proto));
  if (unsent_.size() == 1) StartWrite(&unsent_.front());
  return bytes;
}

void AgentStream::OnReadDone(bool ok) {
  if (!ok) {  // No more comes; OnDone() says why.
    {
      base::MutexLock lock(&mutex_);
      closed_ = true;
    }
    RemoveHold();
    return;
  }
  absl::StatusOr<protocol::CoordinatorMessage> message =
      protocol::FromProto(incoming_);
  if (message.ok()) {
    callbacks_.on_message(std::move(message).value());
  } else if (refused_.ok()) {
    refused_ = absl::InvalidArgumentError(
        absl::StrCat("the coordinator sent a malformed message: ",
                     absl::string_view(message.status().message())));
    Cancel();
  }
  incoming_.Clear();
  StartRead(&incoming_);
}

void AgentStream::OnWriteDone(bool ok) {
  base::MutexLock lock(&mutex_);
  closed_ = closed_ || !ok;
  unsent_.pop_front();
  if (!closed_ && !unsent_.empty()) StartWrite(&unsent_.front());
}

void AgentStream::OnDone(const grpc::Status& status) {
  std::shared_ptr<AgentStream> self = std::move(self_);
  const auto on_done = callbacks_.on_done;
  const absl::Status why =
      refused_.ok()
          ? absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                         status.error_message())
          : refused_;
  // Before anybody who waits goes on: the call keeps its channel, and the last
  // channel of all must not go on this thread of gRPC's, which it waits for.
  self.reset();
  on_done(why);
}

}  // namespace pactrain::agent
