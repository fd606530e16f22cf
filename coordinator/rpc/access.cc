#include "coordinator/rpc/access.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rpc/credentials.h"

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
  if (!peer.has_value() || peer->agent == agent) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "it calls itself agent ", agent, ", and its certificate is of ",
      peer->ToString(), "; give it the certificate of its own name"));
}

absl::StatusOr<Peer> Access::Admit(const grpc::ServerContextBase& context,
                                   Right right, absl::string_view call) {
  if (!tls_) return Peer();
  const absl::StatusOr<protocol::Identity> identity =
      protocol::IdentityOf(base::PeerUris(*context.auth_context()));
  const absl::Status checked =
      identity.ok() ? CheckRight(*identity, right) : identity.status();
  if (!checked.ok()) return Refuse(context, call, checked);
  return Peer(*identity);
}

absl::Status Access::AdmitName(const grpc::ServerContextBase& context,
                               const Peer& peer, const std::string& agent) {
  const absl::Status checked = CheckName(peer, agent);
  return checked.ok() ? checked : Refuse(context, "Hello", checked);
}

absl::Status Access::Refuse(const grpc::ServerContextBase& context,
                            absl::string_view call, const absl::Status& why) {
  const std::string text =
      absl::StrCat("refused ", call, " from ", HostOf(context), ": ",
                   absl::string_view(why.message()));
  {
    base::MutexLock lock(&mu_);
    if (told_.IsNews(text, base::MonotonicNow())) LOG_WARN("{}", text);
  }
  on_refused_({"call refused", CallerOf(context), "",
               absl::StrCat(call, " from ", HostOf(context)),
               std::string(why.message()), ""});
  return why;
}

protocol::Caller Access::CallerOf(
    const grpc::ServerContextBase& context) const {
  if (!tls_) return {};
  const std::vector<std::string> uris = base::PeerUris(*context.auth_context());
  return {absl::StrJoin(uris, " "), base::PeerSerial(*context.auth_context())};
}

}  // namespace pactrain::coordinator
