// One WatchJob call. Thread-safe: gRPC's callbacks and the timer meet here.
#ifndef PACTRAIN_COORDINATOR_RPC_JOB_WATCH_H_
#define PACTRAIN_COORDINATOR_RPC_JOB_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "coordinator/rpc/admin_service.h"
#include "pactrain/v1/admin.grpc.pb.h"

namespace pactrain::coordinator {

class JobWatch : public grpc::ServerWriteReactor<v1::WatchJobResponse> {
 public:
  // Owned by itself until gRPC is done with it; `service` outlives the server.
  static std::shared_ptr<JobWatch> Make(AdminService* service, Peer peer,
                                        std::string who,
                                        const protocol::GroupId& group);

  const Peer& peer() const { return peer_; }  // Who watches.
  // Whose watches are counted together: SourceOf() its caller.
  const std::string& who() const { return who_; }
  const protocol::GroupId& group() const { return group_; }
  // Sends the state if it differs from the one sent last and the watcher keeps
  // up; else it is offered again at the next tick.
  void Offer(const v1::JobState& state);
  // Ends the call once; nothing follows.
  void End(const grpc::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  JobWatch(AdminService* service, Peer peer, std::string who,
           const protocol::GroupId& group)
      : service_(service),
        peer_(std::move(peer)),
        who_(std::move(who)),
        group_(group) {}
  void FinishIfFree();

  AdminService* const service_;
  const Peer peer_;
  const std::string who_;
  const protocol::GroupId group_;
  std::shared_ptr<JobWatch> self_;  // Until OnDone().
  v1::WatchJobResponse out_;        // Belongs to the write that is open.

  base::Mutex mu_;
  std::string sent_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> ended_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

// Whether one more of `who` may watch beside `watches`. ResourceExhausted: it
// has as many as one may, or all are taken; says by whom, and what to do.
absl::Status CheckRoom(const std::set<std::shared_ptr<JobWatch>>& watches,
                       const std::string& who);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_JOB_WATCH_H_
