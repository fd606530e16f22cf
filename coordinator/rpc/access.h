// Who may call what, by the certificate of the connection alone.
//
//   agent              AgentStream, under its own name only
//   reader, operator   what Admin shows
//   operator           what Admin changes
//
// Without TLS, so on loopback, everybody may call everything. Refusals are
// logged, each once a minute.
//
// Thread-safe.
#ifndef PACTRAIN_COORDINATOR_RPC_ACCESS_H_
#define PACTRAIN_COORDINATOR_RPC_ACCESS_H_

#include <grpcpp/server_context.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/repeat_filter.h"
#include "protocol/audit.h"
#include "protocol/identity.h"

namespace pactrain::coordinator {

enum class Right { kJoin, kRead, kOperate };

// Nothing: there is no TLS.
using Peer = std::optional<protocol::Identity>;

// PermissionDenied: `peer` has no such right; says who has.
absl::Status CheckRight(const Peer& peer, Right right);
// PermissionDenied: `peer` is not the agent of that name.
absl::Status CheckName(const Peer& peer, const std::string& agent);

class Access {
 public:
  // `on_refused` is told what is logged, for the audit log; thread-safe.
  using OnRefused = std::function<void(protocol::AuditEvent)>;
  Access(bool tls, OnRefused on_refused)
      : tls_(tls), on_refused_(std::move(on_refused)) {}

  // Whose call this is, once it has the right to `call`.
  // Unauthenticated, PermissionDenied: refused.
  absl::StatusOr<Peer> Admit(const grpc::ServerContextBase& context,
                             Right right, absl::string_view call);
  // Whom the audit log names for this call, whether or not it is admitted.
  protocol::Caller CallerOf(const grpc::ServerContextBase& context) const;
  // As CheckName(), and logs a refusal.
  absl::Status AdmitName(const grpc::ServerContextBase& context,
                         const Peer& peer, const std::string& agent);

 private:
  absl::Status Refuse(const grpc::ServerContextBase& context,
                      absl::string_view call, const absl::Status& why);

  const bool tls_;
  const OnRefused on_refused_;
  base::Mutex mu_;
  base::RepeatFilter told_ ABSL_GUARDED_BY(mu_);
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_ACCESS_H_
