// The admin service: what the coordinator knows, and pins. Everybody sees and
// changes the jobs that he is granted (Access).
//
// Watchers get a group's state when it has changed since they last got it, at
// most ten times a second. Thread-safe.
#ifndef PACTRAIN_COORDINATOR_RPC_ADMIN_SERVICE_H_
#define PACTRAIN_COORDINATOR_RPC_ADMIN_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "coordinator/driver/driver.h"
#include "coordinator/rpc/access.h"
#include "pactrain/v1/admin.grpc.pb.h"

namespace pactrain::coordinator {

v1::JobState ToProto(const GroupSnapshot& snapshot);
v1::ReadAuditResponse ToProto(const protocol::AuditPage& page);

class JobWatch;

class AdminService : public v1::Admin::CallbackService {
 public:
  static constexpr size_t kMaxWatchers = 64;
  static constexpr size_t kMaxWatchersOfOne = 16;  // SourceOf() its caller.
  // Of the agents that an answer names beside those that were asked about.
  static constexpr int kMaxKnown = 20;

  // Whose connections are open now; thread-safe.
  using Connected = std::function<std::vector<base::CertificateFacts>()>;
  // `driver` and `access` must outlive the service.
  AdminService(Driver* driver, Access* access, Connected connected)
      : driver_(driver), access_(access), connected_(std::move(connected)) {}

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* ListAgents(
      grpc::CallbackServerContext* context,
      const v1::ListAgentsRequest* request,
      v1::ListAgentsResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context,
      const v1::WatchJobRequest* request) override;

  grpc::ServerUnaryReactor* SetPin(grpc::CallbackServerContext* context,
                                   const v1::SetPinRequest* request,
                                   v1::SetPinResponse* response) override;

  grpc::ServerUnaryReactor* ForgetJob(grpc::CallbackServerContext* context,
                                      const v1::ForgetJobRequest* request,
                                      v1::ForgetJobResponse* response) override;

  grpc::ServerUnaryReactor* ReadAudit(grpc::CallbackServerContext* context,
                                      const v1::ReadAuditRequest* request,
                                      v1::ReadAuditResponse* response) override;

  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context,
                                  const v1::EvictRequest* request,
                                  v1::EvictResponse* response) override;

  grpc::ServerUnaryReactor* Readmit(grpc::CallbackServerContext* context,
                                    const v1::ReadmitRequest* request,
                                    v1::ReadmitResponse* response) override;

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;

  grpc::ServerUnaryReactor* Undrain(grpc::CallbackServerContext* context,
                                    const v1::UndrainRequest* request,
                                    v1::UndrainResponse* response) override;

  grpc::ServerUnaryReactor* Backup(grpc::CallbackServerContext* context,
                                   const v1::BackupRequest* request,
                                   v1::BackupResponse* response) override;

  // Shows watchers what changed; called by the driver's timer.
  void Tick();
  // Ends all watches and takes no new ones.
  void EndWatches();

 private:
  friend class JobWatch;
  // The state with the groups that `peer` sees.
  StateSnapshot SeenBy(const Peer& peer) const;
  // Whose call this is, once it may do that with the job it names.
  absl::StatusOr<Peer> AdmitJob(const grpc::CallbackServerContext& context,
                                Right right,
                                const absl::StatusOr<std::string>& job,
                                absl::string_view call);
  // The same of what is of all jobs.
  absl::Status AdmitAllJobs(const grpc::CallbackServerContext& context,
                            Right right, absl::string_view call);
  void Forget(const std::shared_ptr<JobWatch>& watch);
  // So that calls are refused by them, too.
  void TakeEvictedRules();

  Driver* const driver_;
  Access* const access_;
  const Connected connected_;
  base::Mutex evicted_mu_;  // Of those, one at a time.
  base::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<JobWatch>> watches_ ABSL_GUARDED_BY(mu_);
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_ADMIN_SERVICE_H_
