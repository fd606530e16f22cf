#include "agent/exchange/tcp/transport.h"

#include <openssl/rand.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "asio/post.hpp"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace pactrain::agent {
namespace {

using asio::ip::tcp;
using base::Digest;
using protocol::GroupControl;
using protocol::PeerHello;

// When a connection is made anew by a new certificate: of the time that is left
// to its old one, a share that is drawn, so that agents whose certificates end
// at once do not break one step at once, again and again.
constexpr double kFirstRenewal = 0.5;
constexpr double kLastRenewal = 0.95;

// Whether a connection to one is a connection to the other.
bool IsSame(const Transport::Peer& a, const Transport::Peer& b) {
  return a.agent == b.agent && a.incarnation == b.incarnation &&
         a.site == b.site && a.address == b.address;
}

Digest NewNonce() {
  Digest nonce;
  // Fails only where the system has no random bytes; TLS is not there either.
  PT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&nonce), sizeof nonce) ==
           1);
  return nonce;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> Transport::Start(
    asio::io_context& io, const Options& options, TransportEvents* events) {
  auto transport =
      std::unique_ptr<Transport>(new Transport(io, options, events));
  if (options.tls.given()) {
    ASSIGN_OR_RETURN(transport->tls_, base::TlsSource::Open(options.tls));
  }
  ASSIGN_OR_RETURN(
      transport->listener_,
      Listener::Start(io, options.listen_address, options.inbound,
                      static_cast<ListenerOwner*>(transport.get())));
  transport->TickLater();
  return transport;
}

Transport::Transport(asio::io_context& io, const Options& options,
                     TransportEvents* events)
    : io_(io),
      options_(options),
      events_(events),
      resolver_(io),
      tick_timer_(io),
      random_(options.incarnation.lo) {}

Transport::~Transport() {
  SetPeers({});
  for (const auto& [connection, handshake] : std::exchange(handshakes_, {})) {
    connection->Close(absl::CancelledError("the agent stops"));
  }
}

void Transport::SetClusterId(absl::string_view cluster_id) {
  cluster_id_ = std::string(cluster_id);
}

void Transport::SetPeers(const std::vector<Peer>& peers) {
  std::map<std::string, Peer> wanted;
  for (const Peer& peer : peers) wanted[peer.agent] = peer;
  for (auto it = peers_.begin(); it != peers_.end();) {
    const auto found = wanted.find(it->first);
    if (found != wanted.end() && IsSame(found->second, it->second.peer)) {
      it->second.peer = found->second;
      ShowKeys(it->second);
      wanted.erase(found);
      ++it;
      continue;
    }
    // Out of the map first, so that OnClosed() takes it for no loss.
    const auto old = peers_.extract(it++);
    StopDialling(old.mapped());
    CloseLanes(old.mapped());
    if (old.mapped().connection != nullptr) {
      old.mapped().connection->Close(absl::CancelledError("no longer a peer"));
    }
  }
  for (const auto& [agent, peer] : wanted) {
    PeerState& state = peers_.try_emplace(agent, io_).first->second;
    state.peer = peer;
    state.backoff = FirstBackoff(agent);
    DialsFirst(agent) ? Dial(state) : RedialLater(state);
  }
  TryFinishHandshakes();  // Somebody may have dialled before we knew it.
}

bool Transport::IsConnected(const std::string& agent) const {
  const auto it = peers_.find(agent);
  return it != peers_.end() && it->second.connection != nullptr;
}

void Transport::SendData(const std::string& agent,
                         const protocol::FrameHeader& header, Payload payload) {
  if (!IsConnected(agent)) return;
  PeerState& state = peers_.at(agent);
  state.flow->Push(header, std::move(payload));
  state.connection->Pump();
  for (const auto& [number, lane] : state.lanes) {
    if (lane.proven) lane.connection->Pump();
  }
}

void Transport::SendControl(const std::string& agent,
                            const GroupControl& control) {
  if (!IsConnected(agent)) return;
  PeerState& state = peers_.at(agent);
  state.flow->OnControlSent();
  state.connection->SendControl(control);
}

void Transport::ClosePeer(const std::string& agent, const std::string& reason) {
  if (!IsConnected(agent)) return;
  const std::shared_ptr<Connection> connection = peers_.at(agent).connection;
  connection->Close(absl::FailedPreconditionError(reason));
}

std::vector<std::shared_ptr<Connection>> Transport::Outdated() const {
  std::vector<std::shared_ptr<Connection>> outdated;
  for (const auto& [agent, state] : peers_) {
    if (state.connection == nullptr || state.connection->context() == current_)
      continue;
    outdated.push_back(state.connection);
  }
  return outdated;
}

void Transport::PlanRenewal() {
  if (tls_ == nullptr) return;
  // New files count, and ends are warned of, also where nobody connects.
  current_ = tls_->Get();
  absl::Duration end = absl::InfiniteDuration();
  for (const auto& connection : Outdated()) {
    end = std::min(end, connection->ends());
  }
  // What was planned for others that are gone meanwhile may be too late.
  if (end >= renewal_for_) return;
  renewal_for_ = end;
  const absl::Duration now = base::MonotonicNow();
  const absl::Duration left =
      std::max(end - now - 2 * options_.heartbeat, absl::ZeroDuration());
  std::uniform_real_distribution<double> share(kFirstRenewal, kLastRenewal);
  const double drawn = share(random_);
  renew_at_ = now + drawn * left;
  renew_by_ = now + (drawn + 1) / 2 * left;
}

bool Transport::IsRenewalDue() const {
  return base::MonotonicNow() >= renew_at_;
}

bool Transport::IsRenewalLate() const {
  return base::MonotonicNow() >= renew_by_;
}

void Transport::Renew() {
  renewal_for_ = renew_at_ = renew_by_ = absl::InfiniteDuration();
  for (const auto& connection : Outdated()) {
    connection->Close(absl::UnavailableError(
        "it is made anew, by this agent's new certificate"));
  }
}

std::shared_ptr<Connection> Transport::NewConnection(tcp::socket socket) {
  base::TlsContext tls;
  absl::Time own_ends;
  if (tls_ != nullptr) {
    tls = tls_->Get();
    own_ends = std::min(tls_->lives().own.until, tls_->lives().ca.until);
  }
  return std::make_shared<Connection>(std::move(socket), tls, own_ends,
                                      options_.connection,
                                      static_cast<ConnectionOwner*>(this));
}

Transport::PeerState* Transport::Find(const std::string& agent) {
  const auto it = peers_.find(agent);
  return it == peers_.end() ? nullptr : &it->second;
}

absl::Status Transport::CheckPeer(const Connection& connection) {
  const auto it = std::find_if(
      handshakes_.begin(), handshakes_.end(),
      [&](const auto& entry) { return entry.first.get() == &connection; });
  const std::string& dialled = it->second.dialled_agent;
  if (!dialled.empty() && dialled != connection.agent()) {
    return absl::PermissionDeniedError(
        absl::StrCat(connection.remote(), " should be agent ", dialled,
                     ", but its certificate is of agent ", connection.agent()));
  }
  Prove(connection);
  return absl::OkStatus();
}

void Transport::OnHello(const std::shared_ptr<Connection>& connection,
                        const PeerHello& hello) {
  handshakes_.at(connection).hello = hello;
  TryFinishHandshake(connection);
}

void Transport::TryFinishHandshakes() {
  std::vector<std::shared_ptr<Connection>> waiting;
  for (const auto& [connection, handshake] : handshakes_) {
    if (handshake.hello.has_value()) waiting.push_back(connection);
  }
  for (const auto& connection : waiting) TryFinishHandshake(connection);
}

void Transport::TryFinishHandshake(
    const std::shared_ptr<Connection>& connection) {
  const auto it = handshakes_.find(connection);
  if (it == handshakes_.end()) return;
  const PeerHello hello = *it->second.hello;
  const absl::Status checked =
      CheckHello(*connection, hello, it->second.dialled_agent);
  if (absl::IsUnavailable(checked)) return;  // The handshake limit bounds it.
  if (!checked.ok()) return connection->Close(checked);
  PeerState& state = *Find(hello.agent);
  const bool dialled = !it->second.dialled_agent.empty();
  if (dialled && hello.lane != it->second.lane) {
    return connection->Close(absl::FailedPreconditionError(
        absl::StrCat("agent ", hello.agent, " answers for lane ", hello.lane,
                     " where lane ", it->second.lane, " was dialled")));
  }
  if (hello.lane != 0) return AdoptLane(state, connection, hello.lane, dialled);
  if (state.dial != connection) {
    if (!MayAnswer(state, connection, hello.number)) return;
    connection->SendHello(OwnHello(""));
  }
  Adopt(state, connection, hello.number);
}

bool Transport::MayAnswer(PeerState& state,
                          const std::shared_ptr<Connection>& connection,
                          uint64_t hello_number) {
  if (state.connection != nullptr && hello_number < state.hello_number) {
    connection->Close(absl::CancelledError("another connection is in use"));
    return false;
  }
  // Both have dialled, and ours counts; should it fail, this one is here. The
  // handshake limit bounds it.
  return state.dial == nullptr || state.peer.agent < options_.agent;
}

void Transport::Adopt(PeerState& state,
                      const std::shared_ptr<Connection>& connection,
                      uint64_t hello_number) {
  handshakes_.erase(connection);
  Prove(*connection);
  state.dialled = state.dial == connection;
  if (state.dialled) state.dial = nullptr;
  // The peer dialled anew, so it has given up the old one.
  if (state.connection != nullptr) {
    state.connection->Close(absl::UnavailableError("replaced by a newer one"));
  }
  state.connection = connection;
  state.flow = std::make_shared<DataFlow>();
  state.hello_number = hello_number;
  state.backoff = FirstBackoff(state.peer.agent);
  StopDialling(state);
  const Peer& peer = state.peer;
  LOG_DEBUG("connected with agent {} of site {} at {}", peer.agent, peer.site,
            connection->remote());
  // Posted before Accept() posts the first frame.
  asio::post(io_, here_.Wrap([this, agent = peer.agent] {
    events_->OnPeerConnected(agent);
  }));
  connection->Accept(peer.agent, &traffic_[peer.site],
                     options_.egress.ForSite(peer.site));
  connection->Join(state.flow, Connection::Part::kPair);
  state.proofs.emplace(
      KeyProofs::Ends{options_.agent, peer.agent, connection->Binding()});
  ShowKeys(state);
  if (state.connection != nullptr) DialLanes(state);
}

void Transport::ShowKeys(PeerState& state) {
  const std::shared_ptr<Connection> connection = state.connection;
  if (connection == nullptr) return;
  const auto proofs = state.proofs->SetGenerations(state.peer.generations);
  if (!proofs.ok()) return RefuseStranger(*connection, proofs.status());
  for (const auto& proof : *proofs) connection->SendControl(proof);
}

absl::Status Transport::CheckHello(const Connection& connection,
                                   const PeerHello& hello,
                                   const std::string& dialled_agent) const {
  if (connection.certified() && connection.agent() != hello.agent) {
    return absl::PermissionDeniedError(
        absl::StrCat(connection.remote(), " calls itself agent ", hello.agent,
                     ", but its certificate is of agent ", connection.agent()));
  }
  if (!hello.expected_agent.empty() && hello.expected_agent != options_.agent) {
    return absl::FailedPreconditionError(
        absl::StrCat("agent ", hello.agent, " wants agent ",
                     hello.expected_agent, " but this is ", options_.agent));
  }
  if (!hello.cluster_id.empty() && !cluster_id_.empty() &&
      hello.cluster_id != cluster_id_) {
    return absl::FailedPreconditionError(
        absl::StrCat("agent ", hello.agent, " is of cluster ", hello.cluster_id,
                     ", this one of ", cluster_id_));
  }
  if (!dialled_agent.empty() && hello.agent != dialled_agent) {
    return absl::FailedPreconditionError(absl::StrCat(
        "agent ", hello.agent, " answers where ", dialled_agent, " should"));
  }
  if (hello.agent == options_.agent) {
    return absl::FailedPreconditionError(
        absl::StrCat(connection.remote(), " calls itself agent ", hello.agent,
                     ", as this one is called"));
  }
  const auto it = peers_.find(hello.agent);
  if (it == peers_.end() || it->second.peer.incarnation != hello.incarnation) {
    return absl::UnavailableError("no generation names it yet");
  }
  return absl::OkStatus();
}

PeerHello Transport::OwnHello(const std::string& expected, uint16_t lane) {
  return PeerHello{.agent = options_.agent,
                   .incarnation = options_.incarnation,
                   .cluster_id = cluster_id_,
                   .expected_agent = expected,
                   .number = ++hellos_,
                   .nonce = NewNonce(),
                   .lane = lane};
}

void Transport::OnData(Connection& connection, Frame frame) {
  events_->OnPeerData(connection.agent(), std::move(frame));
}

void Transport::OnKeyProof(Connection& connection,
                           const protocol::KeyProof& proof) {
  PeerState& state = peers_.at(connection.agent());
  if (FindLane(state, connection) != nullptr) return RefuseOnLane(connection);
  const absl::Status good = state.proofs->OnProof(proof);
  if (!good.ok()) RefuseStranger(connection, good);
}

void Transport::OnControl(Connection& connection, const GroupControl& control) {
  const std::string agent = connection.agent();
  PeerState& state = peers_.at(agent);
  if (FindLane(state, connection) != nullptr) return RefuseOnLane(connection);
  const absl::Status heard =
      state.proofs->CheckHeard(protocol::GenerationOf(control));
  if (!heard.ok()) return RefuseStranger(connection, heard);
  const std::shared_ptr<DataFlow> flow = state.flow;
  std::vector<std::shared_ptr<Connection>> lanes;
  for (const auto& [number, lane] : state.lanes) {
    if (lane.proven) lanes.push_back(lane.connection);
  }
  events_->OnPeerControl(agent, control);
  flow->OnControlHeard();
  for (const auto& lane : lanes) lane->Resume();
}

void Transport::OnClosed(const std::shared_ptr<Connection>& connection,
                         const absl::Status& why) {
  ForgetInbound(*connection);
  const auto handshake = handshakes_.find(connection);
  if (handshake != handshakes_.end()) {
    if (handshake->second.dialled_agent.empty()) {
      refused_.Add(base::Refusal::kHandshake);
    }
    LogRefusal(*connection, handshake->second.dialled_agent, why);
    PeerState* state = Find(handshake->second.dialled_agent);
    handshakes_.erase(handshake);
    if (state == nullptr || OnLaneClosed(*state, *connection, why)) return;
    if (state->dial != connection) return;
    state->dial = nullptr;
    RedialLater(*state);
    return TryFinishHandshakes();  // The peer may have dialled meanwhile.
  }
  PeerState* state = Find(connection->agent());
  if (state == nullptr || OnLaneClosed(*state, *connection, why)) return;
  if (state->connection != connection) return;
  state->connection = nullptr;
  state->proofs.reset();
  CloseLanes(*state);
  LOG_DEBUG("lost the connection with agent {}: {}", connection->agent(),
            std::string(why.message()));
  // Posted: Close() may come from within SendControl().
  asio::post(io_, here_.Wrap([this, agent = connection->agent(), why] {
    events_->OnPeerDisconnected(agent, why);
  }));
  RedialLater(*state);
}

void Transport::ShareUplink() {
  std::vector<Carried> carried;
  for (const auto& [agent, state] : peers_) {
    if (!state.peer.shares_uplink || state.connection == nullptr) continue;
    carried.push_back(state.connection->carried());
  }
  const double share = uplink_.Sample(carried);
  for (const auto& [agent, state] : peers_) {
    if (state.connection == nullptr) continue;
    state.connection->set_share(state.peer.shares_uplink ? share : 0);
  }
}

void Transport::TickLater() {
  tick_timer_.expires_after(absl::ToChronoNanoseconds(options_.heartbeat));
  tick_timer_.async_wait(here_.Wrap([this](const asio::error_code& error) {
    if (error) return;
    PlanRenewal();
    for (auto& [site, traffic] : traffic_) {
      traffic.goodput_bytes_per_second = 0;
      traffic.bbr_connections = 0;
    }
    std::vector<std::shared_ptr<Connection>> connections;
    for (const auto& [agent, state] : peers_) {
      if (state.connection != nullptr) connections.push_back(state.connection);
      for (const auto& [number, lane] : state.lanes) {
        if (lane.connection != nullptr) connections.push_back(lane.connection);
      }
    }
    for (const auto& connection : connections) connection->Tick();
    ShareUplink();
    for (auto& [site, traffic] : traffic_) {
      traffic.best_bytes_per_second = std::max(
          traffic.best_bytes_per_second, traffic.goodput_bytes_per_second);
    }
    TickLater();
  }));
}

}  // namespace pactrain::agent
