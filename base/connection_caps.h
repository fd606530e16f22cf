// How many connections a listener may hold open: in all, and from one source.
//
// A source is an IPv4 address, or the /64 of an IPv6 one: who has one address
// of that has them all. Many programs of one machine share loopback, so it has
// a limit of its own.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_BASE_CONNECTION_CAPS_H_
#define PACTRAIN_BASE_CONNECTION_CAPS_H_

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pactrain::base {

// Why a connection was closed before it could say anything that counts. Of the
// limits it was one too many itself, or gave way to one that was.
enum class Refusal {
  kTotal,        // As many as allowed are open.
  kSource,       // The same from this source.
  kDescriptors,  // The process has no file descriptor left.
  kUnproven,     // Too many are open whose other side is not known yet.
  kHandshake,    // No proper handshake, or not in time.
  kKey,     // It speaks of a generation whose key it has not shown to hold.
  kBudget,  // Its identity asks for more than one may.
};
inline constexpr Refusal kRefusals[] = {
    Refusal::kTotal,    Refusal::kSource,    Refusal::kDescriptors,
    Refusal::kUnproven, Refusal::kHandshake, Refusal::kKey,
    Refusal::kBudget};
absl::string_view RefusalName(Refusal refusal);  // "total", ...

// How often each came.
class RefusalCounts {
 public:
  void Add(Refusal refusal) { ++counts_[static_cast<size_t>(refusal)]; }
  uint64_t of(Refusal refusal) const {
    return counts_[static_cast<size_t>(refusal)];
  }

 private:
  std::array<uint64_t, std::size(kRefusals)> counts_ = {};
};

// "10.0.0.1", "2001:db8::/64", "127.0.0.1". An IPv4 address within IPv6 counts
// as IPv4. "unknown" for another family.
std::string SourceOf(const sockaddr* address);

class ConnectionCaps {
 public:
  struct Limits {
    int total = 0;
    int per_source = 0;
    int from_loopback = 0;
  };

  explicit ConnectionCaps(const Limits& limits) : limits_(limits) {}

  // Counts one more connection of SourceOf() its address. ResourceExhausted:
  // it is one too many; `*refusal` says of what, of its source before of all.
  absl::Status Admit(const std::string& source, Refusal* refusal);
  // One that was admitted is gone.
  void Release(const std::string& source);
  int open() const { return open_; }

 private:
  const Limits limits_;
  int open_ = 0;
  std::map<std::string, int> by_source_;  // Each at least 1.
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_CONNECTION_CAPS_H_
