#include "coordinator/rpc/job_watch.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "protocol/audit.h"

namespace pactrain::coordinator {

std::shared_ptr<JobWatch> JobWatch::Make(AdminService* service, Peer peer,
                                         std::string who,
                                         const protocol::GroupId& group) {
  std::shared_ptr<JobWatch> watch(
      new JobWatch(service, std::move(peer), std::move(who), group));
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

absl::Status CheckRoom(const std::set<std::shared_ptr<JobWatch>>& watches,
                       const std::string& who) {
  constexpr size_t kNamed = 4;  // Of those who hold most.
  constexpr size_t kMax = AdminService::kMaxWatchers;
  constexpr size_t kMaxOfOne = AdminService::kMaxWatchersOfOne;
  std::map<std::string, size_t> held;
  for (const auto& watch : watches) ++held[watch->who()];
  // In plain text all have one name.
  if (who != protocol::Caller().who && held[who] >= kMaxOfOne) {
    return absl::ResourceExhaustedError(absl::StrCat(
        who, " holds ", held[who], " of the ", kMax,
        " watches, as many as one may; end one, or use pactrain-admin job"));
  }
  if (watches.size() < kMax) return absl::OkStatus();
  std::vector<std::pair<size_t, std::string>> most;
  for (const auto& [name, count] : held) {
    if (count > 0) most.emplace_back(count, name);
  }
  std::sort(most.rbegin(), most.rend());
  if (most.size() > kNamed) most.resize(kNamed);
  return absl::ResourceExhaustedError(absl::StrCat(
      "all ", kMax, " watches are taken, most of them by ",
      absl::StrJoin(most, ", ",
                    [](std::string* text, const auto& of) {
                      absl::StrAppend(text, of.second, " (", of.first, ")");
                    }),
      "; end one, or use pactrain-admin job"));
}

}  // namespace pactrain::coordinator
