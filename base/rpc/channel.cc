#include "base/rpc/channel.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <initializer_list>

#include "absl/strings/match.h"

namespace pactrain::base {
namespace {

bool HasAnyOf(absl::string_view text,
              std::initializer_list<absl::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](absl::string_view part) {
    return absl::StrContains(text, part);
  });
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& address,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials,
    int max_message_bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  // The pauses between tries are the caller's; the channel's own only follow.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite its name the time for one try, the TLS handshake included: that
  // takes three round trips.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, max_message_bytes);
  // A proxy meant for the web must not come between.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

std::optional<ConnectTrouble> TlsTroubleOf(absl::string_view message,
                                           bool tls) {
  if (absl::StrContains(message, "certificate verify failed")) {
    return ConnectTrouble{
        "its certificate is not of this CA or job key: the job keys (or CAs) "
        "differ",
        "give the key file (or the CA) that the daemons were started with"};
  }
  if (tls && absl::StrContains(message, "wrong version number")) {
    return ConnectTrouble{
        "it speaks plain text, not TLS",
        "start it with the same key or certificates, or give none here"};
  }
  // What is left of a connection that the other side closed at once.
  const bool hung_up =
      HasAnyOf(message, {"Socket closed", "Connection reset",
                         "Handshake read failed", "Broken pipe"});
  if (!hung_up) return std::nullopt;
  if (tls) {
    return ConnectTrouble{
        "it hung up on this side's certificate or key",
        "its log says why: another CA or job key, an expired certificate, or "
        "more than one identity may have; where it says nothing, this is "
        "another port (of /metrics or the page)"};
  }
  return ConnectTrouble{
      "it hung up on plain text: most likely it speaks TLS",
      "give --job-key-file (or PACTRAIN_JOB_KEY), or --tls-cert, --tls-key and "
      "--tls-ca"};
}

}  // namespace pactrain::base
