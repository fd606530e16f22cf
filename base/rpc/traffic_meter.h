// What the other sides of a server's connections have sent, as bytes: those
// that the system has taken from them, read or not. A stream costs gRPC more
// than its few bytes, and counts as more of them.
//
// Not thread-safe.
#ifndef PACTRAIN_BASE_RPC_TRAFFIC_METER_H_
#define PACTRAIN_BASE_RPC_TRAFFIC_METER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace pactrain::base {

class TrafficMeter {
 public:
  // As StreamsOf(): those that each of these connections has opened so far.
  using StreamsOfPeers = std::function<std::map<std::string, uint64_t>(
      const std::set<std::string>& peers)>;

  // gRPC 1.51 needs 40 µs for one, as for so many bytes in other frames.
  static constexpr uint64_t kBytesOfStream = 2048;
  // Streams are looked up again after so many bytes: it costs 20 µs.
  static constexpr uint64_t kBytesOfLook = 4096;
  // Of one that is over before its streams could be counted: as an agent's
  // whole word of its jobs is not held against it, and a flood is over after
  // 2 MiB.
  static constexpr uint64_t kBytesOfUnknownStream = 256;

  explicit TrafficMeter(StreamsOfPeers streams_of)
      : streams_of_(std::move(streams_of)) {}

  // From the connection's begin. `socket` is not taken over; `peer` is what
  // gRPC calls its other side.
  void Add(int socket, std::string peer);
  // REQUIRES: it was added, as for Count().
  void Remove(int socket);

  // What came on each of these since it was counted last; those on which
  // nothing came are left out.
  std::map<int, uint64_t> Count(const std::vector<int>& sockets);

 private:
  struct Counted {
    std::string peer;
    uint64_t bytes = 0;
    uint64_t looked = 0;   // How many bytes had come when
    uint64_t streams = 0;  // these had been opened.
  };

  const StreamsOfPeers streams_of_;
  std::map<int, Counted> counted_;  // By sockets.
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_TRAFFIC_METER_H_
