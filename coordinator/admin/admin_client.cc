#include "coordinator/admin/admin_client.h"

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/one_line.h"
#include "base/rpc/channel.h"
#include "base/rpc/credentials.h"
#include "base/status_macros.h"
#include "protocol/identity.h"

namespace pactrain::coordinator {
namespace {

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(timeout));
}

absl::Status CheckIsCoordinator(const std::vector<std::string>& uris) {
  return protocol::CheckIdentity(uris, {protocol::Role::kCoordinator, ""});
}

// Texts in an answer are agents' and scripts', and go to a terminal.
void MakeOneLine(google::protobuf::Message& message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const int count =
          field->is_repeated() ? reflection.FieldSize(message, field) : 1;
      for (int i = 0; i < count; ++i) {
        MakeOneLine(
            *(field->is_repeated()
                  ? reflection.MutableRepeatedMessage(&message, field, i)
                  : reflection.MutableMessage(&message, field)));
      }
    } else if (field->type() == FieldDescriptor::TYPE_STRING &&
               !field->is_repeated()) {
      reflection.SetString(&message, field,
                           base::OneLine(reflection.GetString(message, field)));
    } else if (field->type() == FieldDescriptor::TYPE_STRING) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        reflection.SetRepeatedString(
            &message, field, i,
            base::OneLine(reflection.GetRepeatedString(message, field, i)));
      }
    }
  }
}

}  // namespace

AdminClient::AdminClient(const Options& options)
    : options_(options),
      // Of all jobs at once an answer may be long.
      channel_(base::MakeChannel(
          options.address,
          base::MakeChannelCredentials(options.tls, &CheckIsCoordinator),
          /*max_message_bytes=*/-1)),
      stub_(v1::Admin::NewStub(channel_)) {}

absl::Status AdminClient::Explain(const grpc::Status& status,
                                  absl::Duration timeout) {
  if (status.ok()) return absl::OkStatus();
  const bool connected = channel_->GetState(false) == GRPC_CHANNEL_READY;
  std::string what = absl::StrCat(": ", base::OneLine(status.error_message()));
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    what =
        absl::StrCat(" did not answer within ", absl::FormatDuration(timeout),
                     "; is that its address (--listen)?");
  } else if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
             !connected) {
    const std::string why = base::OneLine(status.error_message());
    const base::ConnectTrouble trouble =
        base::TlsTroubleOf(why, options_.tls.given())
            .value_or(base::ConnectTrouble{
                why,
                "start it, open its port to this node, or name another with "
                "--coordinator"});
    what = absl::StrCat(" cannot be reached (", trouble.what, kBeforeAdvice,
                        trouble.to_do);
  }
  // The codes have the same numbers.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat("coordinator ", options_.address, what));
}

template <typename Request, typename Response>
absl::StatusOr<Response> AdminClient::Call(
    grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                            const Request&, Response*),
    const Request& request) {
  const absl::Duration timeout = std::is_same_v<Request, v1::BackupRequest>
                                     ? options_.backup_timeout
                                     : options_.call_timeout;
  grpc::ClientContext context;
  SetDeadline(context, timeout);
  Response response;
  RETURN_IF_ERROR(
      Explain((stub_.get()->*method)(&context, request, &response), timeout));
  // The log's chain is of the bytes of its lines.
  if (!std::is_same_v<Response, v1::ReadAuditResponse>) MakeOneLine(response);
  return response;
}

absl::StatusOr<v1::ListJobsResponse> AdminClient::ListJobs() {
  return Call(&v1::Admin::Stub::ListJobs, v1::ListJobsRequest());
}

absl::StatusOr<v1::ListAgentsResponse> AdminClient::ListAgents() {
  return Call(&v1::Admin::Stub::ListAgents, v1::ListAgentsRequest());
}

absl::StatusOr<v1::JobState> AdminClient::GetJob(const v1::Group& group) {
  v1::GetJobRequest request;
  *request.mutable_group() = group;
  ASSIGN_OR_RETURN(const v1::GetJobResponse response,
                   Call(&v1::Admin::Stub::GetJob, request));
  return response.job();
}

absl::StatusOr<v1::JobState> AdminClient::SetPin(
    const v1::Group& group, const std::optional<v1::Pin>& pin) {
  v1::SetPinRequest request;
  *request.mutable_group() = group;
  if (pin) *request.mutable_pin() = *pin;
  ASSIGN_OR_RETURN(const v1::SetPinResponse response,
                   Call(&v1::Admin::Stub::SetPin, request));
  return response.job();
}

absl::Status AdminClient::ForgetJob(const std::string& job) {
  v1::ForgetJobRequest request;
  request.set_job(job);
  return Call(&v1::Admin::Stub::ForgetJob, request).status();
}

absl::StatusOr<v1::EvictResponse> AdminClient::Evict(const std::string& who) {
  v1::EvictRequest request;
  request.set_who(who);
  return Call(&v1::Admin::Stub::Evict, request);
}

absl::Status AdminClient::Readmit(const std::string& who) {
  v1::ReadmitRequest request;
  request.set_who(who);
  return Call(&v1::Admin::Stub::Readmit, request).status();
}

absl::StatusOr<v1::DrainResponse> AdminClient::Drain(const std::string& agent,
                                                     bool force) {
  v1::DrainRequest request;
  request.set_agent(agent);
  request.set_force(force);
  return Call(&v1::Admin::Stub::Drain, request);
}

absl::Status AdminClient::Undrain(const std::string& agent) {
  v1::UndrainRequest request;
  request.set_agent(agent);
  return Call(&v1::Admin::Stub::Undrain, request).status();
}

absl::StatusOr<v1::BackupResponse> AdminClient::Backup(
    const std::string& name) {
  v1::BackupRequest request;
  request.set_name(name);
  return Call(&v1::Admin::Stub::Backup, request);
}

absl::StatusOr<v1::ReadAuditResponse> AdminClient::ReadAudit(uint64_t after,
                                                             bool witnesses) {
  v1::ReadAuditRequest request;
  request.set_after(after);
  request.set_witnesses(witnesses);
  return Call(&v1::Admin::Stub::ReadAudit, request);
}

absl::Status AdminClient::WatchOnce(
    const v1::WatchJobRequest& request, std::string& last,
    const std::function<void(const v1::JobState&)>& on_state) {
  grpc::ClientContext context;
  SetDeadline(context, options_.watch_timeout);
  const auto reader = stub_->WatchJob(&context, request);
  v1::WatchJobResponse response;
  bool answered = false;
  while (reader->Read(&response)) {
    answered = true;
    std::string bytes = response.job().SerializeAsString();
    if (bytes == last) continue;  // Each call begins with the state of now.
    last = std::move(bytes);
    MakeOneLine(response);
    on_state(response.job());
  }
  const grpc::Status status = reader->Finish();
  if (answered && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::OkStatus();
  }
  const absl::Status why = Explain(status, options_.watch_timeout);
  return why.ok() ? absl::UnavailableError(absl::StrCat(
                        "coordinator ", options_.address, " ended the watch"))
                  : why;
}

absl::Status AdminClient::Watch(
    const v1::Group& group,
    const std::function<void(const v1::JobState&)>& on_state,
    const std::function<void(const absl::Status&)>& on_lost) {
  v1::WatchJobRequest request;
  *request.mutable_group() = group;
  std::string last;
  bool known = false;                   // It has answered.
  std::optional<absl::Duration> pause;  // While it is gone.
  while (true) {
    const absl::Status end =
        WatchOnce(request, last, [&](const v1::JobState& job) {
          known = true;
          pause.reset();
          on_state(job);
        });
    if (end.ok()) continue;
    if (!known ||
        !(absl::IsUnavailable(end) || absl::IsDeadlineExceeded(end))) {
      return end;
    }
    if (!pause) on_lost(end);
    last.clear();
    pause = pause ? std::min(2 * *pause, options_.longest_pause)
                  : options_.first_pause;
    absl::SleepFor(*pause);
  }
}

}  // namespace pactrain::coordinator
