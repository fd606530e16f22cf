#include "coordinator/rpc/agent_stream.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/rpc/credentials.h"
#include "base/status_macros.h"
#include "protocol/proto_convert.h"

namespace pactrain::coordinator {

grpc::Status ToGrpc(const absl::Status& status) {
  // The codes have the same numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

AgentStream* AgentStream::Serve(Driver* driver, Access* access,
                                grpc::CallbackServerContext* context) {
  std::shared_ptr<AgentStream> stream(new AgentStream(driver, access, context));
  stream->self_ = stream;
  const absl::Status opened = stream->Open();
  if (!opened.ok()) stream->Close(opened);
  stream->ReadNext();
  return stream.get();
}

absl::Status AgentStream::Open() {
  ASSIGN_OR_RETURN(peer_,
                   access_->Admit(*context_, Right::kJoin, "AgentStream"));
  ASSIGN_OR_RETURN(id_, driver_->Open(self_, access_->CallerOf(*context_)));
  return absl::OkStatus();
}

void AgentStream::Send(const protocol::CoordinatorMessage& message) {
  bool overflow = false;
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    overflow = queue_.size() >= kMaxQueue;
    if (!overflow) queue_.push_back(protocol::ToProto(message));
  }
  if (overflow) {
    Close(absl::ResourceExhaustedError(absl::StrCat(
        "the agent does not read: ", kMaxQueue, " messages wait")));
    // The open write may never end by itself.
    context_->TryCancel();
    return;
  }
  Proceed();
}

void AgentStream::Close(const absl::Status& status) {
  {
    base::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = status;
  }
  Proceed();
}

void AgentStream::Proceed() {
  std::optional<absl::Status> finish;
  {
    base::MutexLock lock(&mu_);
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      out_ = std::move(queue_.front());
      queue_.pop_front();
    } else if (closed_ && reading_ == 0) {
      finished_ = true;
      finish = closed_;
    } else {
      return;
    }
  }
  // Outside the mutex: gRPC may call back at once.
  if (finish) {
    Finish(ToGrpc(*finish));
  } else {
    StartWrite(&out_);
  }
}

void AgentStream::OnWriteDone(bool ok) {
  {
    base::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) {
      queue_.clear();
      if (!closed_) closed_ = absl::UnavailableError("the stream broke");
    }
  }
  Proceed();
}

absl::Status AgentStream::Handle() {
  ASSIGN_OR_RETURN(protocol::AgentMessage message, protocol::FromProto(in_));
  if (const auto* hello = std::get_if<protocol::AgentHello>(&message)) {
    RETURN_IF_ERROR(
        access_->AdmitName(*context_, peer_, hello->agent, hello->site));
    site_ = hello->site;
  }
  // What is refused counts as a message all the same.
  if (Refuses(message)) message = protocol::Heartbeat();
  driver_->OnMessage(id_, std::move(message));
  return absl::OkStatus();
}

bool AgentStream::Refuses(const protocol::AgentMessage& message) {
  const auto* const group = std::visit(
      [](const auto& words) -> const protocol::GroupId* {
        if constexpr (requires { words.group; }) return &words.group;
        return nullptr;
      },
      message);
  if (group == nullptr) return false;
  const auto* local = std::get_if<protocol::LocalTrainers>(&message);
  const absl::Status runs = access_->CheckRun(peer_, site_, group->job);
  if (runs.ok()) return false;
  access_
      ->Refuse(*context_,
               local != nullptr ? "LocalTrainers" : "a message of a job", runs,
               group->job)
      .IgnoreError();
  if (local == nullptr) return true;
  for (const protocol::TrainerJoined& joined : local->here) {
    Send(protocol::JoinRefused{*group, joined.trainer.rank,
                               joined.trainer.attach_id,
                               std::string(runs.message())});
  }
  return true;
}

void AgentStream::OnReadDone(bool ok) {
  {
    base::MutexLock lock(&mu_);
    if (finished_) return;
    ++reading_;
  }
  const absl::Status status = ok ? Handle() : absl::OkStatus();
  if (!ok || !status.ok()) {
    driver_->OnClosed(
        id_, ok ? std::string(status.message()) : "closed by the agent");
    Close(status);
  }
  ReadNext();
}

void AgentStream::ReadNext() {
  bool more = false;
  {
    base::MutexLock lock(&mu_);
    more = !closed_;
  }
  // As long as this call is counted, nobody finishes the stream under it.
  if (more) StartRead(&in_);
  {
    base::MutexLock lock(&mu_);
    --reading_;
  }
  Proceed();
}

void AgentStream::OnCancel() {
  driver_->OnClosed(id_, "the connection is gone");
  Close(absl::CancelledError("the connection is gone"));
}

void AgentStream::OnDone() {
  driver_->OnClosed(id_, "the stream ended");
  self_.reset();
}

}  // namespace pactrain::coordinator
