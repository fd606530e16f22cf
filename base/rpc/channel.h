// The gRPC channel from one of our programs to another.
//
// Thread-safe.
#ifndef PACTRAIN_BASE_RPC_CHANNEL_H_
#define PACTRAIN_BASE_RPC_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace pactrain::base {

// To `address` ("host:port"), without the proxy that http_proxy and its like
// name. A call on it notices within 15 s that the other
// side is gone. Messages of more than `max_message_bytes` end their call; -1:
// no limit.
std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& address,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials,
    int max_message_bytes);

// Why a first connection failed, in our words.
struct ConnectTrouble {
  std::string what;   // "its certificate is of another CA or job key"
  std::string to_do;  // "give the key file that the daemons were started with"
};

// What gRPC's message about a connection that never stood means where it is
// about TLS or the lack of it; `tls`: of this side. Nothing: of something else.
std::optional<ConnectTrouble> TlsTroubleOf(absl::string_view message, bool tls);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_CHANNEL_H_
