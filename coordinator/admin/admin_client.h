// An operator's calls to the coordinator, each with a deadline.
//
// Errors are the coordinator's own, in its words; Unavailable and
// DeadlineExceeded say that it cannot be reached. All name its address.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_ADMIN_ADMIN_CLIENT_H_
#define PACTRAIN_COORDINATOR_ADMIN_ADMIN_CLIENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/tls/tls_files.h"
#include "pactrain/v1/admin.grpc.pb.h"

namespace pactrain::coordinator {

class AdminClient {
 public:
  struct Options {
    std::string address;  // "127.0.0.1:7070"
    base::TlsFiles tls;   // Not given: plain text.
    absl::Duration call_timeout = absl::Seconds(10);
    absl::Duration backup_timeout = absl::Minutes(5);
    // A watch is made of calls of this length.
    absl::Duration watch_timeout = absl::Seconds(60);
    // Pauses before a watch that was lost is tried again: the first, twice as
    // long each time, and the longest.
    absl::Duration first_pause = absl::Milliseconds(500);
    absl::Duration longest_pause = absl::Seconds(10);
  };

  // In the message of Unavailable, where there was no connection: what is wrong
  // comes before, what to do after.
  static constexpr absl::string_view kBeforeAdvice = "); ";

  explicit AdminClient(const Options& options);

  absl::StatusOr<v1::ListJobsResponse> ListJobs();
  absl::StatusOr<v1::ListAgentsResponse> ListAgents();
  // NotFound: there is no such group.
  absl::StatusOr<v1::JobState> GetJob(const v1::Group& group);
  // Without a pin the policy decides again. NotFound: no such group, or it
  // never had a generation. Unavailable: the journal cannot be written.
  absl::StatusOr<v1::JobState> SetPin(const v1::Group& group,
                                      const std::optional<v1::Pin>& pin);
  // NotFound: as above. FailedPrecondition: a rank of the job is in sight.
  // Unavailable: the journal cannot be written.
  absl::Status ForgetJob(const std::string& job);
  // InvalidArgument: it means nobody, or the caller. Unavailable: as above.
  absl::StatusOr<v1::EvictResponse> Evict(const std::string& who);
  // NotFound: nobody was evicted so. Unavailable: as above.
  absl::Status Readmit(const std::string& who);
  // NotFound: it is not connected. FailedPrecondition: that would end a job,
  // and `force` is not said. Unavailable: as above.
  absl::StatusOr<v1::DrainResponse> Drain(const std::string& agent, bool force);
  // NotFound: it is not drained. Unavailable: as above.
  absl::Status Undrain(const std::string& agent);
  // The answer comes when it is written. AlreadyExists, ResourceExhausted: no
  // more of them, or of that name. Unavailable: as above.
  absl::StatusOr<v1::BackupResponse> Backup(const std::string& name);
  // Lines of the audit log after that number, oldest first; and what agents
  // keep of it.
  absl::StatusOr<v1::ReadAuditResponse> ReadAudit(uint64_t after,
                                                  bool witnesses = false);
  // Hands over the group's state now and whenever it has changed. A coordinator
  // that has answered once and then is gone is waited for: `on_lost` hears why,
  // once, and `on_state` the state once it is back. Returns with an error only.
  absl::Status Watch(const v1::Group& group,
                     const std::function<void(const v1::JobState&)>& on_state,
                     const std::function<void(const absl::Status&)>& on_lost);

 private:
  // One call: until its deadline (OK), or how else it ended. `last` is what was
  // handed over last, serialized.
  absl::Status WatchOnce(
      const v1::WatchJobRequest& request, std::string& last,
      const std::function<void(const v1::JobState&)>& on_state);
  // Texts in the answer are on one line each, but for those of the audit log.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(
      grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                              const Request&, Response*),
      const Request& request);
  absl::Status Explain(const grpc::Status& status, absl::Duration timeout);

  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_ADMIN_CLIENT_H_
