#include "coordinator/rpc/job_watch.h"

#include <utility>

namespace pactrain::coordinator {

std::shared_ptr<JobWatch> JobWatch::Make(AdminService* service, Peer peer,
                                         const protocol::GroupId& group) {
  std::shared_ptr<JobWatch> watch(
      new JobWatch(service, std::move(peer), group));
  watch->self_ = watch;
  return watch;
}

void JobWatch::Offer(const v1::JobState& state) {
  {
    base::MutexLock lock(&mu_);
    if (writing_ || ended_) return;
    std::string bytes = state.SerializeAsString();
    if (bytes == sent_) return;
    sent_ = std::move(bytes);
    *out_.mutable_job() = state;
    writing_ = true;
  }
  // Outside the mutex: gRPC may call back at once.
  StartWrite(&out_);
}

void JobWatch::End(const grpc::Status& status) {
  {
    base::MutexLock lock(&mu_);
    if (ended_) return;
    ended_ = status;
  }
  FinishIfFree();
}

void JobWatch::FinishIfFree() {
  grpc::Status status;
  {
    base::MutexLock lock(&mu_);
    if (!ended_ || writing_ || finished_) return;
    finished_ = true;
    status = *ended_;
  }
  Finish(status);
}

void JobWatch::OnWriteDone(bool ok) {
  {
    base::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok && !ended_) ended_ = grpc::Status::CANCELLED;
  }
  FinishIfFree();
}

void JobWatch::OnCancel() { End(grpc::Status::CANCELLED); }

void JobWatch::OnDone() {
  service_->Forget(self_);
  self_.reset();
}

}  // namespace pactrain::coordinator
