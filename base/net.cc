#include "base/net.h"

#include <arpa/inet.h>
#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace pactrain::base {
namespace {

absl::Status Malformed(absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("address '", text, "' ", what,
                   "; host:port is needed, like 127.0.0.1:7070"));
}

bool IsIpv4(const std::string& host, in_addr* out) {
  return inet_pton(AF_INET, host.c_str(), out) == 1;
}

bool IsIpv6(const std::string& host, in6_addr* out) {
  return inet_pton(AF_INET6, host.c_str(), out) == 1;
}

// Which namespace a file of /proc/PID/ns or /run/netns stands for; nullopt
// where it may not be looked at.
std::optional<std::pair<dev_t, ino_t>> NamespaceOf(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
  return std::pair(found.st_dev, found.st_ino);
}

absl::Status At(absl::string_view flag, const absl::Status& mistake) {
  return absl::Status(
      mistake.code(),
      absl::StrCat(flag, ": ", absl::string_view(mistake.message())));
}

absl::StatusOr<HostPort> ParseFor(absl::string_view flag,
                                  absl::string_view address) {
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (parsed.ok()) return parsed;
  return At(flag, parsed.status());
}

absl::Status CheckBeyondLoopback(absl::string_view flag,
                                 absl::string_view address,
                                 Protection protection, bool insecure_network) {
  if (protection == Protection::kTls) return absl::OkStatus();
  if (insecure_network && InOwnNetworkNamespace()) return absl::OkStatus();
  const std::string why =
      absl::StrCat(flag, ": address '", address,
                   "' is not loopback, and what is said there would be neither "
                   "encrypted nor authenticated: ");
  if (insecure_network) {
    return absl::PermissionDeniedError(absl::StrCat(
        why,
        "--insecure-network holds only inside a network namespace other than "
        "the machine's (ip netns exec NAME ...)"));
  }
  return absl::PermissionDeniedError(absl::StrCat(
      why, "give ",
      protection == Protection::kMetricsTokenNotYet
          ? "--metrics-token-file, and "
      : protection == Protection::kPageTokenNotYet ? "--page-token-file, and "
                                                   : "",
      "--tls-cert, --tls-key and --tls-ca, or --job-key-file, or an address of "
      "127.0.0.0/8 (--insecure-network allows others inside a test's own "
      "network "
      "namespace)"));
}

}  // namespace

bool IsAddress(absl::string_view host) {
  const std::string text(host);
  in_addr v4;
  in6_addr v6;
  return IsIpv4(text, &v4) || IsIpv6(text, &v6);
}

std::string HostPort::ToString() const {
  return host.find(':') == std::string::npos
             ? absl::StrCat(host, ":", port)
             : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  // The longest host name is 253 characters.
  if (text.size() > 255) return Malformed(text.substr(0, 32), "is too long");
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Malformed(text, "has no port");
  absl::string_view host = text.substr(0, colon);
  uint32_t port = 0;
  const absl::string_view digits = text.substr(colon + 1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos ||
      !absl::SimpleAtoi(digits, &port) || port > 65535) {
    return Malformed(text, "has no port from 0 to 65535");
  }
  if (absl::ConsumePrefix(&host, "[")) {
    in6_addr ignored;
    if (!absl::ConsumeSuffix(&host, "]") ||
        !IsIpv6(std::string(host), &ignored)) {
      return Malformed(text, "has no IPv6 address in its brackets");
    }
  } else if (host.find_first_of(": /") != host.npos) {
    return Malformed(text, "has a malformed host");
  }
  if (host.empty()) return Malformed(text, "has no host");
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

absl::StatusOr<PortRange> ParsePortRange(absl::string_view text) {
  // A host's name may hold a '-', and an IPv6 address colons: the last of them.
  const size_t dash = text.rfind('-');
  const size_t colon = text.rfind(':');
  const bool one = dash == text.npos || colon == text.npos || dash < colon;
  ASSIGN_OR_RETURN(const HostPort first,
                   ParseHostPort(one ? text : text.substr(0, dash)));
  if (one) return PortRange{first.host, first.port, first.port};
  ASSIGN_OR_RETURN(const HostPort last, ParseHostPort(absl::StrCat(
                                            "range:", text.substr(dash + 1))));
  if (first.port == 0 || first.port > last.port) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address '", text, "' has a range of ports from ", first.port, " to ",
        last.port, "; host:first-last is needed, like 127.0.0.1:7072-7079"));
  }
  return PortRange{first.host, first.port, last.port};
}

bool IsLoopback(absl::string_view host) {
  const std::string text(host);
  in_addr v4;
  if (IsIpv4(text, &v4)) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  if (IsIpv6(text, &v6)) return IN6_IS_ADDR_LOOPBACK(&v6);
  return text == "localhost";
}

bool InOwnNetworkNamespace() {
  const auto own = NamespaceOf("/proc/self/ns/net");
  if (!own.has_value()) return false;
  if (const auto init = NamespaceOf("/proc/1/ns/net")) return own != init;
  // Containers hide PID 1's. What `ip netns` has named is not the machine's
  // own.
  std::error_code ignored;
  for (const auto& named :
       std::filesystem::directory_iterator("/run/netns", ignored)) {
    if (NamespaceOf(named.path()) == own) return true;
  }
  return false;
}

bool IsAnyAddress(absl::string_view host) {
  return host == "0.0.0.0" || host == "::";
}

absl::StatusOr<HostPort> CheckListenAddress(absl::string_view flag,
                                            absl::string_view address,
                                            Protection protection,
                                            bool insecure_network) {
  ASSIGN_OR_RETURN(HostPort parsed, ParseFor(flag, address));
  if (IsLoopback(parsed.host)) return parsed;
  if (!IsAddress(parsed.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": address '", address,
        "' names a host; give its IP address, like 127.0.0.1:7070"));
  }
  RETURN_IF_ERROR(
      CheckBeyondLoopback(flag, address, protection, insecure_network));
  return parsed;
}

absl::StatusOr<PortRange> CheckListenRange(absl::string_view flag,
                                           absl::string_view range,
                                           Protection protection,
                                           bool insecure_network) {
  const absl::StatusOr<PortRange> parsed = ParsePortRange(range);
  if (!parsed.ok()) return At(flag, parsed.status());
  RETURN_IF_ERROR(
      CheckListenAddress(flag, HostPort{parsed->host, parsed->first}.ToString(),
                         protection, insecure_network)
          .status());
  return parsed;
}

absl::StatusOr<HostPort> CheckDialAddress(absl::string_view flag,
                                          absl::string_view address,
                                          Protection protection,
                                          bool insecure_network) {
  ASSIGN_OR_RETURN(HostPort parsed, ParseFor(flag, address));
  if (parsed.port == 0 || IsAnyAddress(parsed.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": nobody can dial '", address,
        "'; give the address and port that the other side listens at"));
  }
  // With TLS the other side proves who it is, whatever a name leads to.
  if (protection != Protection::kTls) {
    if (protection == Protection::kTlsNotYet && !insecure_network &&
        !IsLoopback(parsed.host) && !IsAddress(parsed.host)) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag, ": address '", address,
          "' names a host, which needs TLS, so that the other side proves who "
          "it is; give --tls-cert, --tls-key and --tls-ca, or --job-key-file, "
          "or an address of 127.0.0.0/8"));
    }
    RETURN_IF_ERROR(
        CheckListenAddress(flag, address, protection, insecure_network)
            .status());
  }
  return parsed;
}

}  // namespace pactrain::base
