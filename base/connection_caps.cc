#include "base/connection_caps.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace pactrain::base {
namespace {

std::string TextOf(int family, const void* bytes) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(family, bytes, text, sizeof text);
  return text;
}

bool IsLoopbackSource(const std::string& source) {
  return absl::StartsWith(source, "127.") || source == "::1";
}

}  // namespace

absl::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kTotal:
      return "total";
    case Refusal::kSource:
      return "source";
    case Refusal::kDescriptors:
      return "descriptors";
    case Refusal::kUnproven:
      return "unproven";
    case Refusal::kHandshake:
      return "handshake";
    case Refusal::kKey:
      return "key";
    case Refusal::kBudget:
      return "budget";
  }
  return "unknown";
}

std::string SourceOf(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, address, sizeof v4);
    return TextOf(AF_INET, &v4.sin_addr);
  }
  if (address->sa_family != AF_INET6) return "unknown";
  sockaddr_in6 v6;
  std::memcpy(&v6, address, sizeof v6);
  in6_addr& bytes = v6.sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&bytes)) {
    return TextOf(AF_INET, bytes.s6_addr + 12);
  }
  if (IN6_IS_ADDR_LOOPBACK(&bytes)) return "::1";
  std::fill(bytes.s6_addr + 8, bytes.s6_addr + 16, 0);
  return absl::StrCat(TextOf(AF_INET6, &bytes), "/64");
}

absl::Status ConnectionCaps::Admit(const std::string& source,
                                   Refusal* refusal) {
  const int allowed =
      IsLoopbackSource(source) ? limits_.from_loopback : limits_.per_source;
  const auto it = by_source_.find(source);
  if (it != by_source_.end() ? it->second >= allowed : allowed < 1) {
    *refusal = Refusal::kSource;
    return absl::ResourceExhaustedError(
        absl::StrCat("as many connections from ", source,
                     " are open as one address may have, ", allowed));
  }
  if (open_ >= limits_.total) {
    *refusal = Refusal::kTotal;
    return absl::ResourceExhaustedError(
        absl::StrCat(open_, " connections are open, ", limits_.total,
                     " are allowed in all"));
  }
  ++open_;
  ++by_source_[source];
  return absl::OkStatus();
}

void ConnectionCaps::Release(const std::string& source) {
  const auto it = by_source_.find(source);
  PT_CHECK(it != by_source_.end());
  --open_;
  if (--it->second == 0) by_source_.erase(it);
}

}  // namespace pactrain::base
