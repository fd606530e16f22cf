// Who may call what, by the certificate of the connection alone.
//
//   agent              AgentStream, under its own name only
//   reader, operator   what Admin shows
//   operator           what Admin changes
//
// And with which jobs, by the grants (core/grants.h) that are in force just
// then.
//
// Without TLS, so on loopback, everybody may call everything. Refusals are
// logged, each once a minute.
//
// Thread-safe.
#ifndef PACTRAIN_COORDINATOR_RPC_ACCESS_H_
#define PACTRAIN_COORDINATOR_RPC_ACCESS_H_

#include <grpcpp/server_context.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/repeat_filter.h"
#include "base/tls/certificate_facts.h"
#include "base/tls/revoked.h"
#include "coordinator/core/grants.h"
#include "protocol/audit.h"
#include "protocol/identity.h"
#include "protocol/types.h"

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
  static constexpr size_t kMaxRemembered = 10'000;

  // `on_refused` is told what is logged, for the audit log; thread-safe.
  using OnRefused = std::function<void(protocol::AuditEvent)>;
  Access(bool tls, OnRefused on_refused)
      : tls_(tls), on_refused_(std::move(on_refused)) {}

  // Whose call this is, once it has the right to `call` and nobody denies it.
  // Unauthenticated, PermissionDenied: refused.
  absl::StatusOr<Peer> Admit(const grpc::ServerContextBase& context,
                             Right right, absl::string_view call);
  // Whom the audit log names for this call, whether or not it is admitted.
  protocol::Caller CallerOf(const grpc::ServerContextBase& context) const;
  static protocol::Caller CallerOf(const base::CertificateFacts& facts);
  // As CheckName() and Grants::CheckSite(), and logs a refusal. Without TLS,
  // whether that name was evicted.
  absl::Status AdmitName(const grpc::ServerContextBase& context,
                         const Peer& peer, const std::string& agent,
                         absl::string_view site);
  // As Grants::Check(), of a reader or operator, and logs a refusal.
  absl::Status AdmitJob(const grpc::ServerContextBase& context,
                        const Peer& peer, Action action, absl::string_view job,
                        absl::string_view call);
  // The same for what is of all jobs.
  absl::Status AdmitAll(const grpc::ServerContextBase& context,
                        const Peer& peer, Action action,
                        absl::string_view call);
  // The same of an agent, of the site that it has said; logs nothing.
  absl::Status CheckRun(const Peer& peer, absl::string_view site,
                        absl::string_view job) const;
  // Whether this agent, of `site`, may have trainers of the job, whoever speaks
  // for it; also by the certificate that it showed last.
  absl::Status CheckMember(absl::string_view job, const std::string& agent,
                           const std::string& site) const;
  // Whether it may be of that site.
  absl::Status CheckSite(const std::string& agent,
                         const std::string& site) const;
  bool Sees(const Peer& peer, absl::string_view job) const;
  // Whether a connection may stay. PermissionDenied: it is denied by now.
  // Unauthenticated: the CA, or job's key, of its certificate is taken no more.
  absl::Status CheckStays(const base::CertificateFacts& facts) const;

  // `why`, logged and audited.
  absl::Status Refuse(const grpc::ServerContextBase& context,
                      absl::string_view call, const absl::Status& why,
                      absl::string_view job = "");

  // InvalidArgument: the rule of a deny list means the caller, who could not
  // take it back then.
  absl::Status CheckIsAnother(const grpc::ServerContextBase& context,
                              const std::string& rule) const;
  // Those of them, and of agents by what they showed last, whom the rule of a
  // deny list means, as policies call them.
  // InvalidArgument: it is the serial number of a certificate that its holder
  // makes itself of a job key, another one at each start.
  absl::StatusOr<std::set<std::string>> MeantBy(
      const std::string& rule,
      std::vector<base::CertificateFacts> connected) const;
  // What other agents showed is forgotten.
  void KeepShown(const std::set<std::string>& agents);
  // Rules as of a deny list, by operators: in force from now on.
  void SetEvicted(std::vector<std::string> rules);
  // Differs once somebody may be denied who was not before.
  uint64_t version() const { return version_; }
  // In force from now on; not null.
  void SetGrants(std::shared_ptr<const Grants> grants);
  void SetRevoked(std::shared_ptr<const base::RevokedCertificates> revoked);
  // The CAs that are taken, as base::AnchorsOf(): connections of others may not
  // stay.
  void SetAnchors(const std::set<std::string>& anchors);

 private:
  std::shared_ptr<const Grants> grants() const;
  absl::Status CheckDenied(const Credential& credential) const;
  // For CheckMember().
  void Remember(const std::string& agent, const base::CertificateFacts& facts);

  const bool tls_;
  const OnRefused on_refused_;
  std::atomic<uint64_t> version_ = 0;
  mutable base::Mutex mu_;
  std::shared_ptr<const Grants> grants_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<const Grants>();
  std::shared_ptr<const std::vector<std::string>> evicted_
      ABSL_GUARDED_BY(mu_) = std::make_shared<const std::vector<std::string>>();
  std::shared_ptr<const base::RevokedCertificates> revoked_ ABSL_GUARDED_BY(
      mu_) = std::make_shared<const base::RevokedCertificates>();
  std::set<std::string> anchors_ ABSL_GUARDED_BY(mu_);
  // That agents showed last. Beyond kMaxRemembered the version grows, so that
  // KeepShown() is called.
  std::map<std::string, base::CertificateFacts> shown_ ABSL_GUARDED_BY(mu_);
  base::RepeatFilter told_ ABSL_GUARDED_BY(mu_);
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_ACCESS_H_
