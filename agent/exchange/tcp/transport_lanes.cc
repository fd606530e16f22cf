// The lanes of a pair of agents: further connections that carry its data.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/exchange/tcp/lane_proof.h"
#include "agent/exchange/tcp/transport.h"
#include "base/log.h"

namespace pactrain::agent {
namespace {

constexpr absl::Duration kRedialPause = absl::Seconds(2);

}  // namespace

int Transport::ConnectionsWith(const std::string& agent) const {
  if (!IsConnected(agent)) return 0;
  const auto& lanes = peers_.at(agent).lanes;
  return 1 + static_cast<int>(
                 std::count_if(lanes.begin(), lanes.end(),
                               [](const auto& l) { return l.second.proven; }));
}

int Transport::Wanted(const PeerState& state) const {
  const std::string& there = state.peer.site;
  if (there == options_.site) return 1;
  int own = 1, theirs = 0;
  for (const auto& [agent, other] : peers_) {
    own += other.peer.site == options_.site;
    theirs += other.peer.site == there;
  }
  const int pairs = std::max(own, theirs);
  return std::max(1, (options_.connections_per_link + pairs - 1) / pairs);
}

void Transport::DialLanes(PeerState& state) {
  if (state.connection == nullptr || !state.dialled) return;
  const int wanted = Wanted(state);
  for (uint16_t lane = 1; lane < wanted; ++lane) {
    if (!state.lanes.contains(lane)) DialLane(state, lane);
  }
}

void Transport::DialLane(PeerState& state, uint16_t lane) {
  const auto& endpoint = state.connection->endpoint();
  if (!endpoint) return;
  const auto attempt = NewAttempt();
  state.lanes[lane].attempt = attempt;
  attempt->socket.async_connect(
      *endpoint, [this, agent = state.peer.agent, lane,
                  attempt](const asio::error_code& error) {
        if (attempt->given_up) return;
        attempt->timer.cancel();
        PeerState* state = Find(agent);
        if (state == nullptr) return;
        const auto it = state->lanes.find(lane);
        if (it == state->lanes.end() || it->second.attempt != attempt) return;
        OnLaneDialled(*state, lane, error);
      });
}

void Transport::OnLaneDialled(PeerState& state, uint16_t number,
                              const asio::error_code& error) {
  Lane& lane = state.lanes.at(number);
  const auto attempt = std::exchange(lane.attempt, nullptr);
  if (error) {
    state.lanes.erase(number);
    return RedialLanesLater(state);
  }
  const auto connection = NewConnection(std::move(attempt->socket));
  lane.connection = connection;
  handshakes_[connection] =
      Handshake{.dialled_agent = state.peer.agent, .lane = number, .hello = {}};
  connection->Start(TlsStream::Side::kClient);
  connection->SendHello(OwnHello(state.peer.agent, number));
}

void Transport::AdoptLane(PeerState& state,
                          const std::shared_ptr<Connection>& connection,
                          uint16_t number, bool dialled) {
  if (!dialled) {
    const bool fits = state.connection != nullptr && !state.dialled &&
                      number < protocol::kMaxLanes &&
                      !state.lanes.contains(number);
    if (!fits) {
      return connection->Close(absl::CancelledError(
          absl::StrCat("lane ", number, " is none of a connection here")));
    }
    connection->SendHello(OwnHello("", number));
    state.lanes[number].connection = connection;
  }
  handshakes_.erase(connection);
  Prove(*connection);
  const Peer& peer = state.peer;
  connection->Accept(peer.agent, &traffic_[peer.site],
                     options_.egress.ForSite(peer.site));
  connection->SendControl(MakeLaneProof(state.connection->Binding(),
                                        connection->Binding(), options_.agent,
                                        peer.agent));
}

void Transport::OnLaneProof(Connection& connection,
                            const protocol::LaneProof& proof) {
  PeerState& state = peers_.at(connection.agent());
  Lane* const lane = FindLane(state, connection);
  if (lane == nullptr || lane->proven ||
      !IsSame(proof,
              MakeLaneProof(state.connection->Binding(), connection.Binding(),
                            state.peer.agent, options_.agent))) {
    return RefuseStranger(
        connection,
        absl::UnauthenticatedError(absl::StrCat(
            "a lane whose other end is not that of the connection with agent ",
            connection.agent())));
  }
  lane->proven = true;
  LOG_DEBUG("{} connections with agent {}", ConnectionsWith(state.peer.agent),
            state.peer.agent);
  connection.Join(state.flow, Connection::Part::kLane);
}

void Transport::RefuseOnLane(Connection& connection) {
  connection.Close(absl::FailedPreconditionError(
      absl::StrCat(connection.remote(), " sent control on a lane")));
}

void Transport::RedialLanesLater(PeerState& state) {
  state.lane_timer.expires_after(absl::ToChronoNanoseconds(kRedialPause));
  state.lane_timer.async_wait(here_.Wrap(
      [this, agent = state.peer.agent](const asio::error_code& error) {
        if (error) return;
        if (PeerState* state = Find(agent)) DialLanes(*state);
      }));
}

bool Transport::OnLaneClosed(PeerState& state, const Connection& connection,
                             const absl::Status& why) {
  const auto it = std::find_if(
      state.lanes.begin(), state.lanes.end(),
      [&](const auto& l) { return l.second.connection.get() == &connection; });
  if (it == state.lanes.end()) return false;
  const bool carried_data = it->second.proven;
  state.lanes.erase(it);
  if (carried_data) {
    // What it carried is lost: all is sent anew.
    const std::shared_ptr<Connection> pair = state.connection;
    pair->Close(absl::Status(why.code(),
                             absl::StrCat("of several connections "
                                          "with it, one broke: ",
                                          absl::string_view(why.message()))));
  } else {
    RedialLanesLater(state);
  }
  return true;
}

void Transport::CloseLanes(PeerState& state) {
  state.lane_timer.cancel();
  // Out of the state first, so that OnLaneClosed() takes it for no loss.
  for (auto& [number, lane] : std::exchange(state.lanes, {})) {
    if (lane.attempt != nullptr) lane.attempt->GiveUp();
    if (lane.connection != nullptr) {
      lane.connection->Close(absl::CancelledError("its pair is closed"));
    }
  }
}

Transport::Lane* Transport::FindLane(PeerState& state,
                                     const Connection& connection) {
  for (auto& [number, lane] : state.lanes) {
    if (lane.connection.get() == &connection) return &lane;
  }
  return nullptr;
}

}  // namespace pactrain::agent
