#include "protocol/identity.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "protocol/types.h"

namespace pactrain::protocol {
namespace {

constexpr absl::string_view kScheme = "spiffe://";
constexpr absl::string_view kHost = "pactrain";
constexpr absl::string_view kBoundHost = ".job.pactrain";
// Between an agent's name and its job. No such job has it in its own name, so
// the last one in a name is always this.
constexpr absl::string_view kBetween = "..";

absl::string_view RoleText(Role role) {
  switch (role) {
    case Role::kAgent:
      return "agent";
    case Role::kCoordinator:
      return "coordinator";
    case Role::kOperator:
      return "operator";
    case Role::kReader:
      return "reader";
  }
  return "";
}

// "agent/NAME", "operator", ... False: neither.
bool ReadPath(absl::string_view path, Identity& identity) {
  for (const Role role :
       {Role::kAgent, Role::kCoordinator, Role::kOperator, Role::kReader}) {
    absl::string_view rest = path;
    if (!absl::ConsumePrefix(&rest, RoleText(role))) continue;
    identity.role = role;
    if (rest.empty()) return role != Role::kAgent;
    if (role == Role::kCoordinator || !absl::ConsumePrefix(&rest, "/") ||
        !CheckName("name", rest).ok()) {
      return false;
    }
    identity.name = std::string(rest);
    return role != Role::kAgent || identity.job.empty() ||
           absl::EndsWith(rest, absl::StrCat(kBetween, identity.job));
  }
  return false;
}

absl::StatusOr<Identity> Parse(absl::string_view uri) {
  absl::string_view rest = uri;
  Identity identity;
  if (absl::ConsumePrefix(&rest, kScheme)) {
    const size_t slash = rest.find('/');
    absl::string_view host = rest.substr(0, slash);
    bool known = host == kHost;
    if (!known && absl::ConsumeSuffix(&host, kBoundHost)) {
      known = CheckBoundJob("job", host).ok();
      identity.job = std::string(host);
    }
    if (known && slash != rest.npos &&
        ReadPath(rest.substr(slash + 1), identity)) {
      return identity;
    }
  }
  // Of a stranger perhaps: not longer than a name of ours may be.
  return absl::UnauthenticatedError(absl::StrCat(
      "its certificate is of '", uri.substr(0, 128), "'; allowed are ", kScheme,
      kHost, "/agent/NAME, .../coordinator, .../operator and .../reader"));
}

}  // namespace

std::string HostOf(absl::string_view job) {
  return job.empty() ? std::string(kHost) : absl::StrCat(job, kBoundHost);
}

std::string JobOf(absl::string_view host) {
  return absl::ConsumeSuffix(&host, kBoundHost) ? std::string(host) : "";
}

std::string AgentNameOf(absl::string_view name, absl::string_view job) {
  const std::string end =
      job.empty() ? std::string() : absl::StrCat(kBetween, job);
  return absl::EndsWith(name, end) ? std::string(name)
                                   : absl::StrCat(name, end);
}

Identity AgentCalled(absl::string_view name) {
  const size_t between = name.rfind(kBetween);
  Identity identity{Role::kAgent, std::string(name), ""};
  if (between != name.npos) {
    identity.job = std::string(name.substr(between + kBetween.size()));
  }
  return identity;
}

absl::Status CheckBoundJob(absl::string_view field, absl::string_view job) {
  RETURN_IF_ERROR(CheckName(field, job));
  if (!absl::StrContains(job, kBetween)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": '", job,
                   "' has two dots in a row, which a key of one job "
                   "alone cannot have; call the job otherwise"));
}

std::string Identity::Short() const {
  return absl::StrCat(job.empty() ? "" : absl::StrCat("job/", job, "/"),
                      RoleText(role), name.empty() ? "" : "/", name);
}

std::string Identity::ToString() const {
  return absl::StrCat(kScheme, HostOf(job), "/", RoleText(role),
                      name.empty() ? "" : "/", name);
}

absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& uris) {
  if (uris.size() == 1) return Parse(uris[0]);
  return absl::UnauthenticatedError(absl::StrCat(
      "its certificate has ", uris.size(), " URIs among its alternative names",
      "; exactly one of the form ", kScheme, kHost, "/agent/NAME is needed"));
}

absl::Status CheckIdentity(const std::vector<std::string>& uris,
                           const Identity& expected) {
  ASSIGN_OR_RETURN(const Identity identity, IdentityOf(uris));
  if (identity == expected) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("its certificate is of ", identity.ToString(), ", not of ",
                   expected.ToString()));
}

}  // namespace pactrain::protocol
