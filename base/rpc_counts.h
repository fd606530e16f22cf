// Counts the calls of a server by method, for Prometheus. Knows no gRPC.
//
// RpcCounter is thread-safe.
#ifndef PACTRAIN_BASE_RPC_COUNTS_H_
#define PACTRAIN_BASE_RPC_COUNTS_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "base/histogram.h"
#include "base/mutex.h"

namespace pactrain::base {

// By number, as dashboards for gRPC servers call them.
inline constexpr std::array<const char*, 17> kRpcCodes = {"OK",
                                                          "Canceled",
                                                          "Unknown",
                                                          "InvalidArgument",
                                                          "DeadlineExceeded",
                                                          "NotFound",
                                                          "AlreadyExists",
                                                          "PermissionDenied",
                                                          "ResourceExhausted",
                                                          "FailedPrecondition",
                                                          "Aborted",
                                                          "OutOfRange",
                                                          "Unimplemented",
                                                          "Internal",
                                                          "Unavailable",
                                                          "DataLoss",
                                                          "Unauthenticated"};

struct RpcMethod {
  std::string type;  // "unary", "client_stream", "server_stream", "bidi_stream"
  std::string service;
  std::string name;
  auto operator<=>(const RpcMethod&) const = default;
};

struct RpcCount {
  uint64_t started = 0;
  std::array<uint64_t, kRpcCodes.size()> handled = {};  // By code.
  Histogram seconds;                                    // Of all that ended.
};
using RpcCounts = std::map<RpcMethod, RpcCount>;

class RpcCounter {
 public:
  // There is such a method: its zeros are shown.
  void Declare(const RpcMethod& method) {
    MutexLock lock(&mu_);
    counts_[method];
  }
  void OnStarted(const RpcMethod& method) {
    MutexLock lock(&mu_);
    ++counts_[method].started;
  }
  // A code that there is none of counts as "Unknown".
  void OnEnded(const RpcMethod& method, size_t code, double seconds) {
    MutexLock lock(&mu_);
    RpcCount& count = counts_[method];
    ++count.handled[code < kRpcCodes.size() ? code : 2];
    count.seconds.Add(seconds);
  }
  RpcCounts Get() const {
    MutexLock lock(&mu_);
    return counts_;
  }

 private:
  mutable Mutex mu_;
  RpcCounts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_COUNTS_H_
