// How many HTTP/2 streams the other sides of this process's gRPC servers have
// opened, also those that never became a call because gRPC refused their
// headers. gRPC counts them for its channelz, which is asked here.
//
// Thread-safe.
#ifndef PACTRAIN_BASE_RPC_STREAM_COUNTS_H_
#define PACTRAIN_BASE_RPC_STREAM_COUNTS_H_

#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace pactrain::base {

// What gRPC calls the other side of a connection: "ipv4:192.0.2.1:4711",
// "ipv6:%5B2001:db8::1%5D:4711".
std::string PeerName(const sockaddr* peer);

// Since each of these connections began. Those that gRPC does not know, or no
// more, are left out. Costs 20 µs for each.
std::map<std::string, uint64_t> StreamsOf(const std::set<std::string>& peers);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_STREAM_COUNTS_H_
