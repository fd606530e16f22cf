// Which addresses a daemon may listen at and dial.
//
// Loopback always; beyond it only with TLS. Tests may use other addresses in
// plain text inside a network namespace of their own.
#ifndef PACTRAIN_BASE_NET_H_
#define PACTRAIN_BASE_NET_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pactrain::base {

struct HostPort {
  std::string
      host;  // An IPv4 address or an IPv6 one without brackets, or a name.
  uint16_t port = 0;
  std::string ToString() const;  // "10.0.0.1:80", "[::1]:80".
};

// Reads "host:port" or "[ipv6]:port".
// InvalidArgument: names the text and what is wrong with it.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// Ports of a host, of which one is to be taken.
struct PortRange {
  std::string host;    // As in HostPort.
  uint16_t first = 0;  // 0: any that is free; then `last` is 0 as well.
  uint16_t last = 0;
};

// Reads "host:port" or "host:first-last", 1 <= first <= last.
// InvalidArgument: names the text and what is wrong with it.
absl::StatusOr<PortRange> ParsePortRange(absl::string_view text);

// An IPv4 address, or an IPv6 one without brackets.
bool IsAddress(absl::string_view host);
// 127.0.0.0/8, ::1 or "localhost".
bool IsLoopback(absl::string_view host);

// This process is in another network namespace than PID 1, or, where PID 1
// cannot be looked at, in one that `ip netns` has named; so what it binds is
// not reachable from the machine's own network. False when neither tells.
bool InOwnNetworkNamespace();

// What protects what is said at an address.
enum class Protection {
  kTls,        // Certificates were given.
  kTlsNotYet,  // They could be, but were not.
  // With a token as well they would:
  kMetricsTokenNotYet,
  kPageTokenNotYet,
};

// May a daemon listen at `address` ("host:port", port 0: any), the value of
// `flag`? Loopback and with TLS: yes. Otherwise only with `insecure_network`
// and in a network namespace of its own. The host must be an address or
// "localhost".
//   InvalidArgument:  not an address and port.
//   PermissionDenied: refused; says why and what to do.
absl::StatusOr<HostPort> CheckListenAddress(absl::string_view flag,
                                            absl::string_view address,
                                            Protection protection,
                                            bool insecure_network);
// The same for a range of ports.
absl::StatusOr<PortRange> CheckListenRange(absl::string_view flag,
                                           absl::string_view range,
                                           Protection protection,
                                           bool insecure_network);
// The same for an address that is dialled: it must have a port and cannot be
// 0.0.0.0 or [::]. With TLS it may be a host's name.
absl::StatusOr<HostPort> CheckDialAddress(absl::string_view flag,
                                          absl::string_view address,
                                          Protection protection,
                                          bool insecure_network);
// 0.0.0.0 or ::.
bool IsAnyAddress(absl::string_view host);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_NET_H_
