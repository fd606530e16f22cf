// Calls of the admin service that keep a cluster up: of all jobs, so of
// operators who may change all of them.
#include <set>
#include <string>
#include <utility>

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

grpc::ServerUnaryReactor* AdminService::Evict(
    grpc::CallbackServerContext* context, const v1::EvictRequest* request,
    v1::EvictResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = AdmitAllJobs(*context, Right::kOperate, "Evict");
  if (status.ok()) {
    status = access_->CheckIsAnother(*context, request->who());
  }
  std::set<std::string> meant;
  if (status.ok()) {
    auto connected = access_->MeantBy(request->who(), connected_());
    status = connected.status();
    if (status.ok()) meant = *std::move(connected);
  }
  if (status.ok()) {
    auto done = driver_->Evict(request->who(), access_->CallerOf(*context));
    status = done.status();
    if (done.ok()) {
      meant.merge(done->meant);
      for (const std::string& who : meant) response->add_meant(who);
      for (const std::string& who : done->known) {
        if (response->known_size() == kMaxKnown) break;
        response->add_known(who);
      }
    }
  }
  if (status.ok()) TakeEvictedRules();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

void AdminService::TakeEvictedRules() {
  // What is taken last is what is newest.
  base::MutexLock lock(&evicted_mu_);
  access_->SetEvicted(driver_->EvictedRules());
}

grpc::ServerUnaryReactor* AdminService::Readmit(
    grpc::CallbackServerContext* context, const v1::ReadmitRequest* request,
    v1::ReadmitResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = AdmitAllJobs(*context, Right::kOperate, "Readmit");
  if (status.ok()) {
    status = driver_->Readmit(request->who(), access_->CallerOf(*context));
  }
  if (status.ok()) TakeEvictedRules();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace pactrain::coordinator
