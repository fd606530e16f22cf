// Calls of the admin service that keep a cluster up: of all jobs, so of
// operators who may change all of them.
#include "absl/strings/str_cat.h"
#include "coordinator/rpc/admin_service.h"
#include "coordinator/rpc/agent_stream.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

grpc::ServerUnaryReactor* AdminService::Drain(
    grpc::CallbackServerContext* context, const v1::DrainRequest* request,
    v1::DrainResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = AdmitAllJobs(*context, Right::kOperate, "Drain");
  if (status.ok()) {
    const auto jobs = driver_->Drain(request->agent(), request->force(),
                                     access_->CallerOf(*context));
    status = jobs.status();
    if (jobs.ok()) response->mutable_jobs()->Assign(jobs->begin(), jobs->end());
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Undrain(
    grpc::CallbackServerContext* context, const v1::UndrainRequest* request,
    v1::UndrainResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = AdmitAllJobs(*context, Right::kOperate, "Undrain");
  if (status.ok()) {
    status = driver_->Undrain(request->agent(), access_->CallerOf(*context));
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Backup(
    grpc::CallbackServerContext* context, const v1::BackupRequest* request,
    v1::BackupResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = AdmitAllJobs(*context, Right::kOperate, "Backup");
  // Before it gets into the audit log.
  if (status.ok()) status = protocol::CheckName("FILE", request->name());
  if (status.ok()) {
    // One at a time, for as long as the disk takes: not worth a thread.
    const auto path =
        driver_->Backup(request->name(), access_->CallerOf(*context));
    status = path.status();
    if (path.ok()) response->set_path(*path);
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace pactrain::coordinator
