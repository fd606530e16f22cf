#include "coordinator/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rpc/call_counting.h"
#include "base/rpc/credentials.h"
#include "base/status_macros.h"
#include "protocol/identity.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

constexpr int kReadBytes = 8 << 10;
constexpr absl::Duration kSweepAgain = absl::Seconds(1);

// Of gRPC's own that may wait for somebody: reflection has one for each stream
// that is open. All of ours are called back.
constexpr int kMaxThreads = 16;

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(protocol::kMaxControlMessage));
  // gRPC 1.51 makes 60 MiB of 60 KiB, in 0.13 s, before it looks at the limit.
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.SetMaxSendMessageSize(
      -1);  // ListJobs may be larger than what agents get.
  // Too many pings are too many bytes (Budgets). That gRPC 1.51 ends such a
  // connection costs it 50 times as much a ping: it makes an error of each
  // that comes until it has sent its answers.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             protocol::kMaxConcurrentStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                             static_cast<int>(protocol::kMaxMetadata));
  // What one read may hold in calls is known of before the next.
  builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadBytes);
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadBytes);
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  // Nobody may be silent or slow for longer before the first HTTP/2 frame.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             1000 * protocol::kHandshakeSeconds);
}

// Agents count on both.
static_assert(base::CappedListener::kBytesOfMessage ==
              protocol::kBytesOfMessage);
static_assert(base::CappedListener::kIdentities ==
              protocol::kIdentitiesOfAJobKey);

base::IdentityBudgets::Limits LimitsOf(const char* what,
                                       const Server::Budget& budget) {
  return {.of = what,
          .at_once = budget.at_once,
          .per_second = budget.per_second,
          .shut_out = Server::kShutOut};
}

// The key of one job, whose holders give themselves names. Who holds the
// coordinator's own may do everything, and all of a cluster may have it.
std::string MakerOf(const base::CertificateFacts& facts) {
  const auto identity = protocol::IdentityOf(facts.uris);
  if (facts.issuer.empty() || !identity.ok() || identity->job.empty()) {
    return "";
  }
  return absl::StrCat("job key ", facts.issuer, " of job '", identity->job,
                      "'");
}

// What somebody may do is asked at each call.
absl::Status CheckIsSomebody(const std::vector<std::string>& uris) {
  return protocol::IdentityOf(uris).status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const base::HostPort& listen, const base::TlsFiles& tls, Driver* driver,
    const base::ConnectionCaps::Limits& caps, Sources sources,
    const Budgets& budgets) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<Server> server(
      new Server(tls.given(), driver, std::move(sources)));
  Server* const self = server.get();
  if (self->sources_.grants) self->access_.SetGrants(self->sources_.grants());
  if (self->sources_.revoked) {
    self->access_.SetRevoked(self->sources_.revoked());
  }
  server->access_.SetEvicted(driver->EvictedRules());
  if (tls.given()) {
    base::MutexLock lock(&server->mu_);
    ASSIGN_OR_RETURN(server->tls_, base::TlsSource::Open(tls));
    server->access_.SetAnchors(server->tls_->anchors());
  }
  auto listener = base::CappedListener::Open(
      listen,
      {caps, tls.given(), absl::Seconds(protocol::kHandshakeSeconds),
       &CheckIsSomebody,
       [self](const base::CertificateFacts& facts) {
         return self->access_.CheckStays(facts);
       },
       [self] { return self->access_.version(); },
       LimitsOf("connections", budgets.connections),
       LimitsOf("calls", budgets.calls), LimitsOf("bytes", budgets.bytes),
       budgets.open, &MakerOf,
       [self](const std::string& source, const base::CertificateFacts* facts,
              const absl::Status& why) {
         self->OnRefused(source,
                         facts == nullptr ? protocol::Caller{"stranger", ""}
                                          : Access::CallerOf(*facts),
                         std::string(why.message()));
       }});
  if (!listener.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "--listen: cannot listen on ", listen.ToString(), ": ",
        absl::string_view(listener.status().message()),
        "; the port is taken or the address is not this machine's; give "
        "another one, or port 0 for any free one"));
  }
  server->listener_ = *std::move(listener);
  grpc::ServerBuilder builder;
  SetLimits(builder);
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      base::MakeServerCredentials(tls, &CheckIsSomebody,
                                  [self](const base::CertificateFacts& facts) {
                                    return self->listener_->TakeCall(facts);
                                  }));
  base::OnMessage on_message;
  if (tls.given()) {
    // Whose it was one too many has no connections any more.
    on_message = [self](const base::CertificateFacts& facts) {
      self->listener_->TakeMessage(facts).IgnoreError();
    };
  }
  base::CountCalls(
      {v1::Coordinator::service_full_name(), v1::Admin::service_full_name()},
      &server->calls_, on_message, builder);
  builder.RegisterService(&server->agents_);
  builder.RegisterService(&server->admin_);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return absl::UnavailableError("gRPC cannot start a server; see the log");
  }
  server->listener_->Start(std::move(acceptor));
  driver->SetTickListener([self] { self->Tick(); });
  driver->Start();
  return server;
}

void Server::Sweep() {
  const auto expel = [&](const std::string& agent,
                         const std::optional<std::string>& job,
                         const absl::Status& why) {
    if (why.ok()) return;
    driver_->Expel(agent, job, std::string(why.message()), {"policy", ""});
  };
  std::set<std::string> in_sight;
  for (const CoordinatorState::Participant& it : driver_->Participants()) {
    in_sight.insert(it.agent);
    expel(it.agent, it.group.job,
          access_.CheckMember(it.group.job, it.agent, it.site));
  }
  for (const AgentSnapshot& agent : driver_->Snapshot().agents) {
    if (!agent.connected) continue;
    in_sight.insert(agent.agent);
    expel(agent.agent, std::nullopt,
          access_.CheckSite(agent.agent, agent.site));
  }
  access_.KeepShown(in_sight);
}

void Server::Tick() {
  if (sources_.grants) access_.SetGrants(sources_.grants());
  if (sources_.revoked) access_.SetRevoked(sources_.revoked());
  {
    base::MutexLock lock(&mu_);
    if (tls_ != nullptr) {
      tls_->Get();
      access_.SetAnchors(tls_->anchors());
    }
  }
  admin_.Tick();
  // Once more for what was let in just before it changed.
  const absl::Duration now = base::MonotonicNow();
  const uint64_t version = access_.version();
  if (version == swept_ && now < sweep_again_) return;
  sweep_again_ =
      version == swept_ ? absl::InfiniteDuration() : now + kSweepAgain;
  swept_ = version;
  Sweep();
}

std::optional<base::CertificateLives> Server::certificates() const {
  base::MutexLock lock(&mu_);
  if (tls_ == nullptr) return std::nullopt;
  return tls_->lives();
}

void Server::OnRefused(const std::string& source,
                       const protocol::Caller& caller, const std::string& why) {
  const std::string of = SourceOf(caller);
  {
    base::MutexLock lock(&mu_);
    if (told_.IsNews(absl::StrCat(source, caller.who, why),
                     base::MonotonicNow(), of)) {
      LOG_WARN("refused a connection from {}{}: {}", source,
               of.empty() ? "" : absl::StrCat(", ", caller.who), why);
    }
  }
  driver_->OnRefused({"connection refused", caller, "",
                      absl::StrCat("from ", source), why, ""});
}

Server::~Server() { Stop(); }

void Server::Stop() {
  if (server_ == nullptr) return;
  listener_->Stop();
  driver_->Stop();
  driver_->Drain();
  admin_.EndWatches();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  server_->Wait();
  server_.reset();
}

}  // namespace pactrain::coordinator
