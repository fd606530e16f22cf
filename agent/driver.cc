#include "agent/driver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "agent/core/wire_convert.h"
#include "agent/local/own_file.h"
#include "agent/local/packet.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/net.h"
#include "base/status_macros.h"
#include "base/tls/mac.h"
#include "base/version.h"
#include "protocol/seat_claim.h"
#include "protocol/types.h"

namespace pactrain::agent {
namespace {

constexpr absl::Duration kMaxTick = absl::Milliseconds(100);
// For the last messages to peers, coordinator and trainers.
constexpr absl::Duration kStopLinger = absl::Milliseconds(500);
// Elements that a thread sums before it looks for more: tens of microseconds.
constexpr size_t kSumGrain = 16 * 1024;
constexpr size_t kMaxAuditFile = 64 << 10;  // Bytes.

// Of the seat that the trainer had; empty: it was told no secret of one.
base::Secret ProofOf(const wire::Hello& hello) {
  const auto fields = ParseHello(hello);
  if (!fields.ok() || fields->seat.empty()) return {};
  return base::ComputeMac(
      fields->seat, protocol::FieldsOfClaim(fields->group, fields->trainer));
}

// What a former process of this agent kept of the coordinator's audit log.
void ReadAuditFile(const std::string& path,
                   CoordinatorClient::Options& options) {
  const std::string text = ReadOwnFile(path, kMaxAuditFile);
  if (text.empty()) return;
  absl::StatusOr<protocol::KeptHeads> kept = protocol::ReadHeads(text);
  if (!kept.ok()) {
    LOG_WARN("{} is not used: {}", path, std::string(kept.status().message()));
  } else if (kept->agent == options.hello.agent) {
    options.hello.audit = std::move(kept->heads);
    options.audit_cluster = std::move(kept->cluster);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> Driver::Start(asio::io_context& io,
                                                      const Options& options) {
  auto crew = std::make_unique<base::Crew>(options.sum_threads);
  agent::Options core = options.core;
  core.share_out = [crew = crew.get()](uint64_t elements, ElementPart part) {
    crew->Share(elements, kSumGrain, part);
  };
  core.stopwatch = &base::MonotonicNow;
  ASSIGN_OR_RETURN(std::unique_ptr<AgentState> state, AgentState::Create(core));
  auto driver = std::unique_ptr<Driver>(
      new Driver(io, options, std::move(crew), std::move(state)));
  RETURN_IF_ERROR(driver->Open());
  driver->TickLater();
  return driver;
}

Driver::Driver(asio::io_context& io, const Options& options,
               std::unique_ptr<base::Crew> crew,
               std::unique_ptr<AgentState> state)
    : io_(io),
      options_(options),
      crew_(std::move(crew)),
      state_(std::move(state)),
      metrics_(options.metrics),
      reserver_(io),
      book_(io, options.socket_path + ".trainers", options.core.agent,
            [this](const BookedTrainer& gone) {
              Handle(FormerTrainerLeft{gone.group, gone.rank, gone.attach_id,
                                       gone.left});
            }),
      tick_timer_(io),
      stop_timer_(io) {}

absl::Status Driver::Open() {
  const agent::Options& core = options_.core;
  Transport::Options data;
  data.agent = core.agent;
  data.site = core.site;
  data.incarnation = core.incarnation;
  data.listen_address = options_.listen;
  data.nobody_dials = options_.advertise_address == protocol::kNobodyDials;
  // Much sooner than a step is given up.
  data.second_dial = std::min(data.second_dial, core.step_deadline / 30);
  data.egress = options_.egress;
  data.connections_per_link = options_.connections_per_link;
  data.inbound.open.per_source = options_.connections_per_source;
  data.tls = options_.tls;
  ASSIGN_OR_RETURN(transport_, Transport::Start(io_, data, this));

  LocalServer::Options local;
  local.socket_path = options_.socket_path;
  local.access = options_.access;
  ASSIGN_OR_RETURN(local_, LocalServer::Start(io_, local, this));
  book_.Open();

  CoordinatorClient::Options coordinator;
  coordinator.address = options_.coordinator;
  coordinator.tls = options_.tls;
  coordinator.connect_timeout = options_.connect_timeout;
  coordinator.hello.agent = core.agent;
  coordinator.hello.incarnation = core.incarnation;
  coordinator.hello.site = core.site;
  coordinator.hello.data_address = advertised_address();
  coordinator.hello.version = base::kVersion;
  coordinator.hello.metrics_address = MetricsAddress();
  ReadAuditFile(AuditFile(), coordinator);
  coordinator_ = std::make_unique<CoordinatorClient>(
      io_, coordinator, static_cast<CoordinatorEvents*>(this));
  metrics_->Publish(Snapshot());
  return absl::OkStatus();
}

std::string Driver::advertised_address() const {
  const std::string& given = options_.advertise_address;
  if (given.empty()) return data_address();
  if (given == protocol::kNobodyDials || base::ParseHostPort(given).ok()) {
    return given;
  }
  const std::string bound = data_address();
  return absl::StrCat(given, bound.substr(bound.rfind(':')));
}

std::string Driver::MetricsAddress() const {
  const base::HostPort& served = options_.metrics_address;
  if (served.port == 0) return "";
  const auto data = base::ParseHostPort(advertised_address());
  const bool data_here = data.ok() && base::IsLoopback(data->host);
  // Whoever asked that address elsewhere would ask a machine of his own.
  if (base::IsLoopback(served.host) && !data_here) return "";
  if (!base::IsAnyAddress(served.host)) return served.ToString();
  return data.ok() ? base::HostPort{data->host, served.port}.ToString() : "";
}

void Driver::TickLater() {
  const absl::Duration interval =
      std::min(kMaxTick, options_.core.resolution_timeout() / 10);
  tick_timer_.expires_after(absl::ToChronoNanoseconds(interval));
  tick_timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    Handle(Tick{SlowestLink()});
    metrics_->Publish(Snapshot());
    TickLater();
  });
}

MetricsSnapshot Driver::Snapshot() const {
  MetricsSnapshot snapshot;
  snapshot.agent = options_.core.agent;
  snapshot.site = options_.core.site;
  snapshot.coordinator_connected = coordinator_->connected();
  snapshot.insecure_network = options_.insecure_network;
  for (const auto& [site, traffic] : transport_->traffic()) {
    snapshot.peers.push_back({site, site == options_.core.site,
                              traffic.sent_bytes, traffic.received_bytes,
                              traffic.rtt, traffic.goodput_bytes_per_second,
                              traffic.bbr_connections, traffic.busy});
  }
  snapshot.refused = transport_->refused();
  snapshot.socket_refused = local_->refused();
  snapshot.certificates = transport_->certificates();
  snapshot.full_reserve_bytes = memory_.full_reserve();
  if (const auto available = memory_.available()) {
    snapshot.available_memory_bytes = available->bytes;
  }
  snapshot.groups = state_->Status();
  return snapshot;
}

void Driver::Stop() {
  StopFor(
      "the agent on this node was stopped.\nStart it again, then the "
      "training.");
}

void Driver::StopFor(const std::string& text) {
  LOG_INFO("stopping: ends {} trainers", trainers_.size());
  local_->StopListening();
  const std::set<TrainerId> trainers = std::exchange(trainers_, {});
  // All are told before the core hears of the first: it would tell the others
  // that a rank is gone, which is not the reason.
  for (const TrainerId trainer : trainers) {
    Fail(trainer, wire::Code::kAgentUnresponsive, text);
  }
  for (const TrainerId trainer : std::exchange(waiting_, {})) {
    Fail(trainer, wire::Code::kAgentUnresponsive, text);
  }
  for (const TrainerId trainer : trainers) {
    Leave(trainer, "lost its agent, which was stopped");
  }
  if (trainers.empty()) return io_.stop();
  stop_timer_.expires_after(absl::ToChronoNanoseconds(kStopLinger));
  stop_timer_.async_wait([this](const asio::error_code&) { io_.stop(); });
}

void Driver::Handle(const Event& event) {
  for (Effect& effect : state_->Handle(event, base::MonotonicNow())) {
    std::visit([this](auto& e) { Run(e); }, effect);
  }
  if (transport_->IsRenewalDue()) RenewConnections();
}

// Not in a step, whose frames would be lost. Of several jobs one may always be
// in one: at last in its first attempt.
void Driver::RenewConnections() {
  const int attempt = state_->OpenAttempt(base::MonotonicNow());
  if (attempt == 0 || (attempt == 1 && transport_->IsRenewalLate())) {
    transport_->Renew();
  }
}

void Driver::Run(SetPeers& effect) {
  std::vector<Transport::Peer> peers;
  for (SetPeers::Peer& peer : effect.peers) {
    peers.push_back({std::move(peer.agent), peer.incarnation,
                     std::move(peer.site), std::move(peer.data_address),
                     std::move(peer.generations), peer.shares_uplink});
  }
  transport_->SetPeers(peers);
  coordinator_->SetAgents(peers.size() + 1);
}

void Driver::Run(SendPeerControl& effect) {
  transport_->SendControl(effect.agent, effect.control);
}

void Driver::Run(SendPeerData& effect) {
  transport_->SendData(effect.agent, effect.header, std::move(effect.payload));
}

void Driver::Run(ClosePeer& effect) {
  transport_->ClosePeer(effect.agent, effect.reason);
}

void Driver::Run(SendTrainer& effect) {
  std::vector<std::shared_ptr<SharedMemory>> memory;
  if (std::holds_alternative<wire::Attached>(effect.message)) {
    const TrainerBuffers buffers = memory_.Find(effect.trainer);
    memory = {buffers.slot, buffers.result};
  }
  if (auto* committed = std::get_if<wire::Committed>(&effect.message)) {
    committed->link_rate = SendRate(transport_->traffic(), options_.core.site);
  }
  std::visit(
      [&](const auto& message) {
        using T = std::decay_t<decltype(message)>;
        if constexpr (std::is_same_v<T, wire::Written>) {
          local_->SendIfRead(effect.trainer, PacketOf(message));
        } else {
          local_->Send(effect.trainer, PacketOf(message), std::move(memory));
        }
      },
      effect.message);
}

void Driver::Run(CloseTrainer& effect) {
  trainers_.erase(effect.trainer);
  book_.Left(effect.trainer, "was let go by its agent");
  local_->Close(effect.trainer);
  Release(effect.trainer);
}

void Driver::Run(SendCoordinator& effect) {
  if (auto* report = std::get_if<protocol::StepReport>(&effect.message)) {
    AddLinks(*report);
  } else if (auto* local =
                 std::get_if<protocol::LocalTrainers>(&effect.message);
             local != nullptr && local->report) {
    AddLinks(*local->report);
  }
  coordinator_->Send(std::move(effect.message));
}

void Driver::Run(LogLine& effect) {
  if (effect.warning) {
    LOG_WARN("{}", effect.text);
  } else {
    LOG_INFO("{}", effect.text);
  }
}

double Driver::SlowestLink() const {
  double slowest = 0;
  for (const auto& [site, traffic] : transport_->traffic()) {
    const double rate = traffic.goodput_bytes_per_second;
    if (site == options_.core.site || rate == 0) continue;
    slowest = slowest == 0 ? rate : std::min(slowest, rate);
  }
  return slowest;
}

void Driver::AddLinks(protocol::StepReport& report) const {
  for (const auto& [site, traffic] : transport_->traffic()) {
    if (site == options_.core.site) continue;
    report.links.push_back({site, traffic.sent_bytes, traffic.received_bytes,
                            traffic.goodput_bytes_per_second,
                            absl::ToDoubleSeconds(traffic.rtt)});
  }
}

void Driver::Fail(TrainerId trainer, wire::Code code, const std::string& text) {
  wire::Failed failed = {};
  failed.header = {wire::Kind::kFailed, sizeof(failed)};
  failed.step = ~0ull;
  failed.code = code;
  failed.final = 1;
  text.copy(failed.text, sizeof(failed.text) - 1);
  local_->Send(trainer, PacketOf(failed));
  local_->Close(trainer);
}

void Driver::OnPeerConnected(const std::string& agent) {
  Handle(PeerConnected{agent});
}

void Driver::OnPeerDisconnected(const std::string& agent,
                                const absl::Status& why) {
  Handle(PeerDisconnected{agent, absl::IsDataLoss(why),
                          std::string(why.message())});
}

void Driver::OnPeerData(const std::string& agent, Frame frame) {
  Handle(PeerData{agent, frame.header, std::move(frame.payload)});
}

void Driver::OnPeerControl(const std::string& agent,
                           const protocol::GroupControl& control) {
  Handle(PeerControl{agent, control});
}

void Driver::OnHello(uint64_t trainer, const wire::Hello& hello) {
  const auto grant = state_->CheckHello(hello);
  if (!grant.ok()) return Handle(TrainerHello{trainer, hello, {}});
  const auto buffers = memory_.Make(trainer, grant->region, grant->bytes);
  waiting_.insert(trainer);
  if (!buffers.ok()) return OnReserved(trainer, hello, buffers.status());
  reserver_.Reserve(*buffers,
                    [this, trainer, hello](const absl::Status& reserved) {
                      OnReserved(trainer, hello, reserved);
                    });
}

void Driver::OnReserved(TrainerId trainer, const wire::Hello& hello,
                        const absl::Status& reserved) {
  if (waiting_.erase(trainer) == 0) return;  // It went.
  if (!reserved.ok()) {
    Release(trainer);
    return Fail(trainer, wire::Code::kRefused,
                absl::StrCat(absl::string_view(reserved.message()),
                             ".\nFree memory on this node, raise the limit, or "
                             "train a smaller model."));
  }
  LOG_INFO("memory that FULL steps of all trainers here need: {} bytes",
           memory_.full_reserve());
  const TrainerBuffers buffers = memory_.Find(trainer);
  trainers_.insert(trainer);
  Book(trainer, hello);
  // What it was granted is asked anew: others may have come meanwhile.
  Handle(TrainerHello{trainer,
                      hello,
                      {buffers.slot->bytes(), buffers.result->bytes()},
                      ProofOf(hello)});
}

void Driver::Release(TrainerId trainer) {
  reserver_.Free(memory_.Release(trainer));
}

// Before the coordinator can hear of it.
void Driver::Book(TrainerId trainer, const wire::Hello& hello) {
  const auto fields = ParseHello(hello);
  if (!fields.ok()) return;
  book_.Attached(
      trainer, {fields->group, fields->trainer.rank, fields->trainer.attach_id,
                local_->ProcessOf(trainer), 0, ""});
}

void Driver::OnMessage(uint64_t trainer, const Message& message) {
  if (std::holds_alternative<wire::Detach>(message)) {
    book_.Left(trainer, "detached");
  }
  std::visit(
      [&](const auto& m) {
        Handle(TrainerMessage{trainer, m});
      },
      message);
}

void Driver::OnTrainerGone(uint64_t trainer, const std::string& reason) {
  if (waiting_.erase(trainer) != 0) Release(trainer);
  // Not known, or closed by the core in the meantime.
  if (trainers_.erase(trainer) == 0) return;
  Leave(trainer, reason);
}

void Driver::Leave(TrainerId trainer, const std::string& reason) {
  book_.Left(trainer, reason);
  Handle(TrainerGone{trainer, reason});
  Release(trainer);
}

wire::About Driver::OnAsk() {
  wire::About about = {};
  about.header = {wire::Kind::kAbout, sizeof(about)};
  const auto put = [](auto& text, absl::string_view value) {
    value.copy(text, sizeof(text) - 1);
  };
  put(about.version, base::kVersion);
  put(about.agent, options_.core.agent);
  put(about.site, options_.core.site);
  put(about.listen, data_address());
  put(about.data_address, advertised_address());
  put(about.coordinator, options_.coordinator);
  about.connected = coordinator_->connected() ? 1 : 0;
  return about;
}

void Driver::OnCoordinatorConnected() {
  transport_->SetClusterId(coordinator_->cluster_id());
  Handle(CoordinatorConnected{});
}

void Driver::OnCoordinatorMessage(const protocol::CoordinatorMessage& message) {
  Handle(message);
}

void Driver::OnCoordinatorDisconnected(const std::string& reason) {
  Handle(CoordinatorDisconnected{reason});
}

void Driver::OnAuditHeads(const protocol::KeptHeads& kept) {
  if (ReplaceFile(AuditFile(), protocol::WriteHeads(kept))) return;
  const int error = errno;
  if (std::exchange(warned_of_audit_, true)) return;
  LOG_WARN(
      "{} cannot be written ({}): what this agent knows of the coordinator's "
      "audit log goes with its process",
      AuditFile(), std::strerror(error));
}

std::vector<protocol::AuditHead> Driver::OnAnotherCluster(
    const std::string& cluster) {
  // By no name that anybody has made up.
  const auto kept =
      protocol::ReadHeads(ReadOwnFile(AuditFile(), kMaxAuditFile));
  if (kept.ok() && kept->cluster != cluster &&
      base::ParseDigest(kept->cluster) &&
      rename(AuditFile().c_str(), AuditFile(kept->cluster).c_str()) != 0) {
    LOG_WARN("{} cannot be renamed ({})", AuditFile(), std::strerror(errno));
  }
  auto before =
      protocol::ReadHeads(ReadOwnFile(AuditFile(cluster), kMaxAuditFile));
  if (!before.ok() || before->agent != options_.core.agent ||
      before->cluster != cluster) {
    return {};
  }
  rename(AuditFile(cluster).c_str(), AuditFile().c_str());
  return std::move(before->heads);
}

void Driver::OnCoordinatorGivenUp(const std::string& reason) {
  error_ = absl::UnavailableError(
      absl::StrCat(reason,
                   "; correct that or --coordinator, then start the "
                   "agent again"));
  StopFor(absl::StrCat("the agent on this node has given up: ", reason,
                       ".\nCorrect that, start the agent again, then the "
                       "training."));
}

}  // namespace pactrain::agent
