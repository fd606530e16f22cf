#include "base/rpc/traffic_meter.h"

// Not netinet/tcp.h: that of Debian 12's libc does not know the bytes received.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pactrain::base {
namespace {

// 0 for one that was aborted.
uint64_t BytesReceived(int socket) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0
             ? info.tcpi_bytes_received
             : 0;
}

}  // namespace

void TrafficMeter::Add(int socket, std::string peer) {
  PT_CHECK(counted_.emplace(socket, Counted{std::move(peer)}).second);
}

void TrafficMeter::Remove(int socket) { PT_CHECK(counted_.erase(socket) == 1); }

std::map<int, uint64_t> TrafficMeter::Count(const std::vector<int>& sockets) {
  std::map<int, uint64_t> come;
  std::set<std::string> peers;
  for (const int socket : sockets) {
    Counted& counted = counted_.at(socket);
    const uint64_t bytes = BytesReceived(socket);
    if (bytes <= counted.bytes) continue;
    come[socket] = bytes - std::exchange(counted.bytes, bytes);
    if (bytes - counted.looked >= kBytesOfLook) peers.insert(counted.peer);
  }
  const std::map<std::string, uint64_t> streams = streams_of_(peers);
  for (auto& [socket, cost] : come) {
    Counted& counted = counted_.at(socket);
    if (!peers.contains(counted.peer)) continue;
    const uint64_t unlooked =
        counted.bytes - std::exchange(counted.looked, counted.bytes);
    const auto told = streams.find(counted.peer);
    if (told == streams.end()) {
      // gRPC has forgotten it, or calls it by another name.
      cost += unlooked / kBytesOfUnknownStream * kBytesOfStream;
      continue;
    }
    // An older one of this address may still be known; then it is fewer.
    const uint64_t now = std::max(told->second, counted.streams);
    cost += (now - std::exchange(counted.streams, now)) * kBytesOfStream;
  }
  return come;
}

}  // namespace pactrain::base
