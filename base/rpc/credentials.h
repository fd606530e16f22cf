// How our gRPC servers and channels prove who they are and whom they talk to.
//
// With certificates: TLS 1.3, both sides. Rewritten files are taken within
// kReloadSeconds, for new connections. Without: plain text.
//
// Thread-safe.
#ifndef PACTRAIN_BASE_RPC_CREDENTIALS_H_
#define PACTRAIN_BASE_RPC_CREDENTIALS_H_

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/tls/certificate_facts.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {

inline constexpr unsigned kReloadSeconds = 2;

// Whether to talk to somebody whose certificate is the CA's and has these URIs.
// Called on gRPC's threads; an error ends the connection before any HTTP/2.
using CheckPeer =
    std::function<absl::Status(const std::vector<std::string>& uris)>;

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    const TlsFiles& files, const CheckPeer& check);

// Whether to take one more call of whom this certificate is. On gRPC's threads,
// before the call has cost more than its headers: it must not wait.
using CheckCall = std::function<absl::Status(const CertificateFacts& facts)>;

// Nobody without a certificate of the CA gets as far as HTTP/2. Who is refused
// in the handshake says HandshakeWatch; gRPC's own log is silent from here on.
// Without certificates nobody asks `check_call`; null: all calls are taken.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    const TlsFiles& files, const CheckPeer& check,
    const CheckCall& check_call = nullptr);

// Of the certificate of a call's other side; it has none: all empty.
CertificateFacts PeerFacts(const grpc::AuthContext& context);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_CREDENTIALS_H_
