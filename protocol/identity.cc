#include "protocol/identity.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "protocol/types.h"

namespace pactrain::protocol {
namespace {

constexpr char kPrefix[] = "spiffe://pactrain/";
constexpr char kAgentPrefix[] = "agent/";

absl::StatusOr<Identity> Parse(absl::string_view uri) {
  absl::string_view path = uri;
  if (absl::ConsumePrefix(&path, kPrefix)) {
    if (path == "coordinator") return Identity{Role::kCoordinator, ""};
    if (path == "operator") return Identity{Role::kOperator, ""};
    if (path == "reader") return Identity{Role::kReader, ""};
    if (absl::ConsumePrefix(&path, kAgentPrefix) &&
        CheckName("agent", path).ok()) {
      return Identity{Role::kAgent, std::string(path)};
    }
  }
  // Of a stranger perhaps: not longer than a name of ours may be.
  return absl::UnauthenticatedError(absl::StrCat(
      "its certificate is of '", uri.substr(0, 128), "'; allowed are ", kPrefix,
      "agent/NAME, .../coordinator, .../operator and .../reader"));
}

}  // namespace

std::string Identity::ToString() const {
  switch (role) {
    case Role::kAgent:
      return absl::StrCat(kPrefix, kAgentPrefix, agent);
    case Role::kCoordinator:
      return absl::StrCat(kPrefix, "coordinator");
    case Role::kOperator:
      return absl::StrCat(kPrefix, "operator");
    case Role::kReader:
      return absl::StrCat(kPrefix, "reader");
  }
  return kPrefix;
}

absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& uris) {
  if (uris.size() == 1) return Parse(uris[0]);
  return absl::UnauthenticatedError(absl::StrCat(
      "its certificate has ", uris.size(), " URIs among its alternative names",
      "; exactly one of the form ", kPrefix, "agent/NAME is needed"));
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
