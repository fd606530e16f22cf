#include "coordinator/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rpc/credentials.h"
#include "protocol/identity.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(protocol::kMaxControlMessage));
  builder.SetMaxSendMessageSize(
      -1);  // ListJobs may be larger than what agents get.
  // Two coordinators must not share a port unseen.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Agents ping on quiet streams; less than 5 s apart is a fault.
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             256);  // Per connection.
  // Nobody may be silent or slow for longer before the first HTTP/2 frame.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5'000);
}

// What somebody may do is asked at each call.
absl::Status CheckIsSomebody(const std::vector<std::string>& uris) {
  return protocol::IdentityOf(uris).status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const base::HostPort& listen, const base::TlsFiles& tls, Driver* driver) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<Server> server(new Server(tls.given(), driver));
  grpc::ServerBuilder builder;
  SetLimits(builder);
  int port = 0;
  builder.AddListeningPort(listen.ToString(),
                           base::MakeServerCredentials(tls, &CheckIsSomebody),
                           &port);
  builder.RegisterService(&server->agents_);
  builder.RegisterService(&server->admin_);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "--listen: cannot listen on ", listen.ToString(),
        ": the port is taken or the address is not this machine's; give "
        "another one, or port 0 for any free one"));
  }
  server->address_ = {listen.host, static_cast<uint16_t>(port)};
  driver->SetTickListener([admin = &server->admin_] { admin->Tick(); });
  driver->Start();
  return server;
}

Server::~Server() { Stop(); }

void Server::Stop() {
  if (server_ == nullptr) return;
  driver_->Stop();
  driver_->Drain();
  admin_.Drain();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  server_->Wait();
  server_.reset();
}

}  // namespace pactrain::coordinator
