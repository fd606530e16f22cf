#include "coordinator/rpc/access.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rpc/credentials.h"
#include "base/status_macros.h"
#include "coordinator/driver/audit_trail.h"

namespace pactrain::coordinator {
namespace {

using protocol::Role;

// Of "ipv4:10.0.0.1:4711" or "ipv6:%5B::1%5D:4711", without the port, which
// differs at each try.
std::string HostOf(const grpc::ServerContextBase& context) {
  const std::string peer = absl::StrReplaceAll(
      context.peer(),
      {{"ipv4:", ""}, {"ipv6:", ""}, {"%5B", "["}, {"%5D", "]"}});
  return peer.substr(0, peer.rfind(':'));
}

Credential CredentialOf(const protocol::Identity& identity,
                        const base::CertificateFacts& facts) {
  return {identity, facts.serial, facts.key, facts.issuer, facts.ca};
}

}  // namespace

absl::Status CheckRight(const Peer& peer, Right right) {
  if (!peer.has_value()) return absl::OkStatus();
  const Role role = peer->role;
  absl::string_view who;
  switch (right) {
    case Right::kJoin:
      if (role == Role::kAgent) return absl::OkStatus();
      who = "an agent";
      break;
    case Right::kRead:
      if (role == Role::kReader || role == Role::kOperator) {
        return absl::OkStatus();
      }
      who = "a reader or an operator";
      break;
    case Right::kOperate:
      if (role == Role::kOperator) return absl::OkStatus();
      who = "an operator";
      break;
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "this is for ", who, ", and the certificate is of ", peer->ToString()));
}

absl::Status CheckName(const Peer& peer, const std::string& agent) {
  if (!peer.has_value() || peer->name == agent) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "it calls itself agent ", agent, ", and its certificate is of ",
      peer->ToString(), "; give it the certificate of its own name"));
}

absl::StatusOr<Peer> Access::Admit(const grpc::ServerContextBase& context,
                                   Right right, absl::string_view call) {
  if (!tls_) return Peer();
  const base::CertificateFacts facts = base::PeerFacts(*context.auth_context());
  const absl::StatusOr<protocol::Identity> identity =
      protocol::IdentityOf(facts.uris);
  absl::Status checked =
      identity.ok() ? CheckRight(*identity, right) : identity.status();
  if (checked.ok()) {
    checked = CheckStays(facts);
    // Who is refused stands for nobody: the agent of that name may have another
    // certificate by now.
    if (checked.ok() && right == Right::kJoin) Remember(identity->name, facts);
  }
  if (!checked.ok()) return Refuse(context, call, checked);
  return Peer(*identity);
}

absl::Status Access::AdmitName(const grpc::ServerContextBase& context,
                               const Peer& peer, const std::string& agent,
                               absl::string_view site) {
  absl::Status checked = CheckName(peer, agent);
  // Else policies would call it what it is not.
  if (checked.ok() && peer && peer->job != protocol::AgentCalled(agent).job) {
    checked = absl::InvalidArgumentError(absl::StrCat(
        "agent '", agent,
        "': '..' stands between the name and the job of its key, and its "
        "certificate is of no such key; give it a name without '..'"));
  }
  if (checked.ok()) {
    checked = peer ? grants()->CheckSite(*peer, site)
                   : CheckDenied({protocol::AgentCalled(agent), "", "", ""});
  }
  return checked.ok() ? checked : Refuse(context, "Hello", checked);
}

absl::Status Access::AdmitJob(const grpc::ServerContextBase& context,
                              const Peer& peer, Action action,
                              absl::string_view job, absl::string_view call) {
  if (!peer) return absl::OkStatus();
  const absl::Status checked = grants()->Check(*peer, "", action, job);
  return checked.ok() ? checked : Refuse(context, call, checked, job);
}

absl::Status Access::AdmitAll(const grpc::ServerContextBase& context,
                              const Peer& peer, Action action,
                              absl::string_view call) {
  if (!peer) return absl::OkStatus();
  const absl::Status checked = grants()->CheckAll(*peer, action);
  return checked.ok() ? checked : Refuse(context, call, checked);
}

absl::Status Access::CheckRun(const Peer& peer, absl::string_view site,
                              absl::string_view job) const {
  if (!peer) return absl::OkStatus();
  const std::shared_ptr<const Grants> grants = this->grants();
  RETURN_IF_ERROR(grants->CheckSite(*peer, site));
  return grants->Check(*peer, site, Action::kRun, job);
}

absl::Status Access::CheckMember(absl::string_view job,
                                 const std::string& agent,
                                 const std::string& site) const {
  const protocol::Identity identity = protocol::AgentCalled(agent);
  RETURN_IF_ERROR(CheckDenied({identity, "", "", ""}));
  if (!tls_) return absl::OkStatus();
  std::optional<base::CertificateFacts> shown;
  {
    base::MutexLock lock(&mu_);
    const auto it = shown_.find(agent);
    if (it != shown_.end()) shown = it->second;
  }
  if (shown) RETURN_IF_ERROR(CheckDenied(CredentialOf(identity, *shown)));
  return CheckRun(identity, site, job);
}

absl::Status Access::CheckSite(const std::string& agent,
                               const std::string& site) const {
  if (!tls_) return absl::OkStatus();
  return grants()->CheckSite(protocol::AgentCalled(agent), site);
}

void Access::Remember(const std::string& agent,
                      const base::CertificateFacts& facts) {
  base::MutexLock lock(&mu_);
  shown_[agent] = facts;
  if (shown_.size() > kMaxRemembered) ++version_;
}

void Access::KeepShown(const std::set<std::string>& agents) {
  base::MutexLock lock(&mu_);
  if (shown_.size() <= kMaxRemembered) return;
  std::erase_if(shown_,
                [&](const auto& it) { return !agents.contains(it.first); });
}

bool Access::Sees(const Peer& peer, absl::string_view job) const {
  return !peer || grants()->Check(*peer, "", Action::kSee, job).ok();
}

absl::Status Access::CheckStays(const base::CertificateFacts& facts) const {
  ASSIGN_OR_RETURN(const protocol::Identity identity,
                   protocol::IdentityOf(facts.uris));
  if (!facts.anchor.empty()) {
    base::MutexLock lock(&mu_);
    if (!anchors_.contains(facts.anchor)) {
      return absl::UnauthenticatedError(
          absl::StrCat("the CA or job key of the certificate of ",
                       identity.ToString(), " is taken no more"));
    }
  }
  return CheckDenied(CredentialOf(identity, facts));
}

absl::Status Access::CheckDenied(const Credential& credential) const {
  RETURN_IF_ERROR(grants()->CheckDenied(credential));
  std::shared_ptr<const std::vector<std::string>> evicted;
  std::shared_ptr<const base::RevokedCertificates> revoked;
  {
    base::MutexLock lock(&mu_);
    evicted = evicted_;
    revoked = revoked_;
  }
  if (revoked->Contains(credential.ca, credential.serial)) {
    return absl::PermissionDeniedError(
        absl::StrCat(credential.identity.ToString(),
                     " may do nothing: its CA took "
                     "certificate serial/",
                     credential.serial, " back (crl-file); give it a new one"));
  }
  for (const std::string& rule : *evicted) {
    if (!MatchesDenial(rule, credential)) continue;
    return absl::PermissionDeniedError(
        absl::StrCat(credential.identity.ToString(),
                     " may do nothing: an operator evicted '", rule,
                     "'; to let it in again: pactrain-admin readmit ", rule));
  }
  return absl::OkStatus();
}

absl::Status Access::CheckIsAnother(const grpc::ServerContextBase& context,
                                    const std::string& rule) const {
  if (!tls_) return absl::OkStatus();
  const base::CertificateFacts facts = base::PeerFacts(*context.auth_context());
  ASSIGN_OR_RETURN(const protocol::Identity identity,
                   protocol::IdentityOf(facts.uris));
  if (!MatchesDenial(rule, CredentialOf(identity, facts))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", rule, "' means you, ", identity.ToString(),
      ", who could not take it back; have another operator do it, or use deny "
      "in the policy file"));
}

absl::StatusOr<std::set<std::string>> Access::MeantBy(
    const std::string& rule,
    std::vector<base::CertificateFacts> connected) const {
  {
    base::MutexLock lock(&mu_);
    for (const auto& [agent, facts] : shown_) connected.push_back(facts);
  }
  std::set<std::string> meant;
  for (const base::CertificateFacts& facts : connected) {
    const auto identity = protocol::IdentityOf(facts.uris);
    if (!identity.ok() ||
        !MatchesDenial(rule, CredentialOf(*identity, facts))) {
      continue;
    }
    if (absl::StartsWith(rule, "serial/") && !facts.issuer.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", rule, "' would last until ", identity->Short(),
          " starts again: it makes its certificate itself, of a job key; "
          "evict ",
          identity->Short(), ", or all who hold that key: key/", facts.issuer));
    }
    meant.insert(identity->Short());
  }
  return meant;
}

void Access::SetEvicted(std::vector<std::string> rules) {
  base::MutexLock lock(&mu_);
  evicted_ = std::make_shared<const std::vector<std::string>>(std::move(rules));
  ++version_;
}

std::shared_ptr<const Grants> Access::grants() const {
  base::MutexLock lock(&mu_);
  return grants_;
}

void Access::SetGrants(std::shared_ptr<const Grants> grants) {
  base::MutexLock lock(&mu_);
  if (grants == grants_) return;
  grants_ = std::move(grants);
  ++version_;
}

void Access::SetRevoked(
    std::shared_ptr<const base::RevokedCertificates> revoked) {
  base::MutexLock lock(&mu_);
  if (revoked == revoked_) return;
  revoked_ = std::move(revoked);
  ++version_;
}

void Access::SetAnchors(const std::set<std::string>& anchors) {
  base::MutexLock lock(&mu_);
  if (anchors == anchors_) return;
  anchors_ = anchors;
  ++version_;
}

absl::Status Access::Refuse(const grpc::ServerContextBase& context,
                            absl::string_view call, const absl::Status& why,
                            absl::string_view job) {
  const protocol::Caller caller = CallerOf(context);
  const std::string text =
      absl::StrCat("refused ", call, " from ", HostOf(context), ": ",
                   absl::string_view(why.message()));
  {
    base::MutexLock lock(&mu_);
    if (told_.IsNews(text, base::MonotonicNow(), SourceOf(caller))) {
      LOG_WARN("{}", text);
    }
  }
  on_refused_({"call refused", caller, std::string(job),
               absl::StrCat(call, " from ", HostOf(context)),
               std::string(why.message()), ""});
  return why;
}

protocol::Caller Access::CallerOf(
    const grpc::ServerContextBase& context) const {
  if (!tls_) return {};
  return CallerOf(base::PeerFacts(*context.auth_context()));
}

protocol::Caller Access::CallerOf(const base::CertificateFacts& facts) {
  // Who holds a job key makes another serial number at each start.
  return {
      absl::StrJoin(facts.uris, " "),
      facts.issuer.empty() ? facts.serial : absl::StrCat("key/", facts.issuer)};
}

}  // namespace pactrain::coordinator
