#include "base/rpc/stream_counts.h"

#include <arpa/inet.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <netinet/in.h>

#include <functional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace pactrain::base {
namespace {

constexpr intptr_t kAllSockets = 1 << 20;

// gRPC's JSON, taken over.
std::string Taken(char* json) {
  const std::string text = json == nullptr ? "" : json;
  gpr_free(json);
  return text;
}

// Calls `found` with each value of this key, a string without escapes, and
// where it ends.
void ForEach(absl::string_view json, absl::string_view key,
             const std::function<void(absl::string_view, size_t)>& found) {
  const std::string begin = absl::StrCat("\"", key, "\":\"");
  size_t at = 0;
  while ((at = json.find(begin, at)) != absl::string_view::npos) {
    at += begin.size();
    const size_t end = json.find('"', at);
    if (end == absl::string_view::npos) return;
    found(json.substr(at, end - at), end);
    at = end;
  }
}

uint64_t Number(absl::string_view text) {
  uint64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

// By its number, once.
uint64_t StreamsOfSocket(intptr_t socket) {
  uint64_t streams = 0;
  ForEach(Taken(grpc_channelz_get_socket(socket)), "streamsStarted",
          [&](absl::string_view value, size_t) { streams = Number(value); });
  return streams;
}

}  // namespace

std::string PeerName(const sockaddr* peer) {
  char host[INET6_ADDRSTRLEN] = "";
  if (peer->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(peer);
    PT_CHECK(inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host) != nullptr);
    return absl::StrCat("ipv4:", host, ":", ntohs(v4->sin_port));
  }
  if (peer->sa_family != AF_INET6) return "";
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(peer);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    PT_CHECK(inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, host,
                       sizeof host) != nullptr);
    return absl::StrCat("ipv4:", host, ":", ntohs(v6->sin6_port));
  }
  PT_CHECK(inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host) != nullptr);
  const std::string zone =
      v6->sin6_scope_id == 0 ? "" : absl::StrCat("%25", v6->sin6_scope_id);
  return absl::StrCat("ipv6:%5B", host, zone, "%5D:", ntohs(v6->sin6_port));
}

std::map<std::string, uint64_t> StreamsOf(const std::set<std::string>& peers) {
  std::map<std::string, uint64_t> streams;
  if (peers.empty()) return streams;
  ForEach(Taken(grpc_channelz_get_servers(0)), "serverId",
          [&](absl::string_view server, size_t) {
            // Pairs of {"name":"chttp2 ipv4:...","socketId":"..."}.
            const std::string sockets = Taken(grpc_channelz_get_server_sockets(
                static_cast<intptr_t>(Number(server)), 0, kAllSockets));
            ForEach(sockets, "name", [&](absl::string_view name, size_t end) {
              const std::string peer(name.substr(name.rfind(' ') + 1));
              if (!peers.contains(peer)) return;
              const absl::string_view rest =
                  absl::string_view(sockets).substr(end);
              intptr_t socket = 0;
              ForEach(rest.substr(0, rest.find('}')), "socketId",
                      [&](absl::string_view id, size_t) {
                        socket = static_cast<intptr_t>(Number(id));
                      });
              streams[peer] = StreamsOfSocket(socket);
            });
          });
  return streams;
}

}  // namespace pactrain::base
