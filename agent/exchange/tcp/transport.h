// The data plane over TCP: one connection to every agent that shares a group
// with this one, kept up as long as they do, and between sites where a link has
// few of them more, the lanes of the pair.
//
// Of a pair the agent with the smaller name dials first; where nothing has come
// of that after a while (a firewall that lets connections out only), the other
// dials as well. Who cannot be dialled by anybody dials all. A hello goes both
// ways; the dialled side answers it once its own generations name the dialler,
// so frames never come from a peer that this agent does not know. A lost
// connection is dialled again with growing, jittered pauses; what was queued on
// it is lost and the receiver of events is told.
//
// Where both have dialled, the connection of the smaller name counts: while its
// hello is not answered, it answers no hello of the other, who gives its own
// connection up when it answers. So a pair has one connection, and no frame is
// lost with the other.
//
// Certificates say who somebody is, and with a job's key everybody who holds it
// can make one for any name. So each end also shows, once for each generation
// that both are in, that it holds its key (KeyProofs). Who speaks of a
// generation without, or shows another key, is refused.
//
// Who dialled the pair's connection dials its lanes, too, and both ends show on
// each that they are those of that connection (LaneProof). Data goes by
// whichever has room, control by the pair's connection alone. The loss of a
// lane that carried data is the loss of all.
//
// With certificates each connection is TLS 1.3, and a peer is who its
// certificate says: a hello that names another is refused. Who is refused there
// is logged, each reason once a minute. How many connections may be open, and
// how many whose sender is not proven, is bounded before a byte is read: who
// has not proven anything gives way to a newcomer, who has never does. What
// proves a sender is its certificate or, in plain text, a hello that one of the
// generations here explains.
//
// Not thread-safe: everything runs on the io_context's one thread, and the
// transport is destroyed there.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_TRANSPORT_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_TRANSPORT_H_

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/exchange/tcp/connection.h"
#include "agent/exchange/tcp/egress_limits.h"
#include "agent/exchange/tcp/key_proofs.h"
#include "agent/exchange/tcp/listener.h"
#include "agent/exchange/tcp/traffic.h"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "base/certificate_life.h"
#include "base/connection_caps.h"
#include "base/connection_places.h"
#include "base/digest.h"
#include "base/repeat_filter.h"
#include "base/tls/tls_source.h"
#include "base/while_here.h"
#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::agent {

// What the transport tells. Called from its handlers, never from within a call
// of its methods.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  virtual void OnPeerConnected(const std::string& agent) = 0;
  // DataLoss: damaged bytes came. Else the connection broke or fell silent.
  virtual void OnPeerDisconnected(const std::string& agent,
                                  const absl::Status& why) = 0;
  virtual void OnPeerData(const std::string& agent, Frame frame) = 0;
  virtual void OnPeerControl(const std::string& agent,
                             const protocol::GroupControl& control) = 0;
};

class Transport : private ConnectionOwner, private ListenerOwner {
 public:
  struct Options {
    std::string agent;
    std::string site;
    base::Digest incarnation;
    // As Listener::Start() takes it.
    std::string listen_address = "127.0.0.1:0";
    // Nobody can dial this agent: it dials all others at once.
    bool nobody_dials = false;
    // How long the larger name waits before it dials as well; jittered.
    absl::Duration second_dial = absl::Seconds(2);
    absl::Duration heartbeat = absl::Seconds(1);
    Connection::Limits connection;
    EgressLimits egress;
    // 1..kMaxLanes; of a link to another site, shared by the pairs of agents
    // that use it, each of which has at least one.
    int connections_per_link = 1;
    // Connections that others opened, those in their handshake included.
    base::ConnectionPlaces::Limits inbound = {
        .open = {.total = protocol::kMaxPeerConnections,
                 .per_source = protocol::kMaxConnectionsPerSource,
                 .from_loopback = protocol::kMaxConnectionsFromLoopback},
        .strangers = protocol::kMaxPeerHandshakes};
    base::TlsFiles tls;  // Not given: plain text.
  };

  struct Peer {
    std::string agent;
    base::Digest incarnation;  // Another process of that name is refused.
    std::string site;
    std::string address;  // "host:port", or "none": nobody can dial it.
    std::vector<protocol::GenerationKey> generations = {};  // Shared with it.
    // Data for it goes through one link with that for all others of which this
    // is said.
    bool shares_uplink = false;
  };

  // Listens. `events` must outlive the transport.
  // Errors: as Listener::Start() and MakeTlsContext() of base/tls.
  static absl::StatusOr<std::unique_ptr<Transport>> Start(
      asio::io_context& io, const Options& options, TransportEvents* events);
  ~Transport() override;

  // "127.0.0.1:4711", with the port that was taken.
  std::string listen_address() const { return listener_->address(); }

  // Once known, peers of another cluster are refused.
  void SetClusterId(absl::string_view cluster_id);

  // Exactly these peers are wanted from now on. Connections to others, or to
  // another incarnation, are closed without OnPeerDisconnected(); more or fewer
  // generations shared with a peer change no connection.
  void SetPeers(const std::vector<Peer>& peers);

  bool IsConnected(const std::string& agent) const;
  // Open ones with that agent that carry data.
  int ConnectionsWith(const std::string& agent) const;

  // Frames for a peer that is not connected are dropped: its
  // OnPeerDisconnected() has been told or no OnPeerConnected() yet.
  void SendData(const std::string& agent, const protocol::FrameHeader& header,
                Payload payload);
  void SendControl(const std::string& agent,
                   const protocol::GroupControl& control);

  // Drops the connection, if there is one; it is dialled anew.
  void ClosePeer(const std::string& agent, const std::string& reason);

  // Connections with peers that this agent's certificate of before made, with
  // half to a twentieth of their time left: once there is a new one, they are
  // to be made anew at a moment that costs least, between steps.
  bool IsRenewalDue() const;
  // No such moment came in half the time that was left then.
  bool IsRenewalLate() const;
  // Drops them, and theirs are dialled anew.
  void Renew();

  const TrafficBySite& traffic() const { return traffic_; }
  const base::RefusalCounts& refused() const { return refused_; }
  // Of the certificate for the next connection; none: plain text.
  std::optional<base::CertificateLives> certificates() const {
    if (tls_ == nullptr) return std::nullopt;
    return tls_->lives();
  }

 private:
  // A socket that is being connected.
  struct Attempt {
    explicit Attempt(asio::io_context& io) : socket(io), timer(io) {}
    asio::ip::tcp::socket socket;
    asio::steady_timer timer;
    bool timed_out = false;
    // Handlers that are still to run do nothing: the transport may be gone.
    bool given_up = false;

    void GiveUp();
  };
  // Hellos went both ways on it, or it is on the way there.
  struct Lane {
    std::shared_ptr<Attempt> attempt;
    std::shared_ptr<Connection> connection;
    bool proven = false;  // By the peer: it carries data.
  };
  struct PeerState {
    explicit PeerState(asio::io_context& io)
        : lane_timer(io), redial_timer(io) {}
    Peer peer;
    // Hellos went both ways; may be null.
    std::shared_ptr<Connection> connection;
    std::shared_ptr<DataFlow> flow;  // Of it and its lanes.
    std::map<uint16_t, Lane> lanes;  // By number, from 1.
    asio::steady_timer lane_timer;
    bool dialled = false;             // `connection` was, by us.
    uint64_t hello_number = 0;        // Of the peer's hello on it.
    std::optional<KeyProofs> proofs;  // Of it.
    // At most one of them: on the way to a connection that we dial.
    std::shared_ptr<Attempt> attempt;
    std::shared_ptr<Connection> dial;  // Its hello is not answered.
    asio::steady_timer redial_timer;
    absl::Duration backoff;
  };
  // Connections in their handshake; the hello of an inbound one may wait here
  // for SetPeers() to name its sender.
  struct Handshake {
    std::string dialled_agent;  // Empty: inbound.
    uint16_t lane = 0;          // That was dialled.
    std::optional<protocol::PeerHello> hello;
  };

  Transport(asio::io_context& io, const Options& options,
            TransportEvents* events);
  // Its sender is known; of one that was dialled it always is.
  void Prove(const Connection& connection);
  void ForgetInbound(const Connection& connection);
  // Of those that carry control.
  std::vector<std::shared_ptr<Connection>> Outdated() const;
  void PlanRenewal();
  std::shared_ptr<Connection> NewConnection(asio::ip::tcp::socket socket);

  // Fails when the handshake limit is over.
  std::shared_ptr<Attempt> NewAttempt();
  void Dial(PeerState& state);
  void OnDialled(const std::string& agent,
                 const std::shared_ptr<Attempt>& attempt,
                 const asio::error_code& error);
  void RedialLater(PeerState& state);
  // Ends what is on the way to a connection that is not needed any more.
  void StopDialling(PeerState& state);

  // How many connections this end wants with a peer.
  int Wanted(const PeerState& state) const;
  // Dials those that are missing, if it is this end that dials.
  void DialLanes(PeerState& state);
  void DialLane(PeerState& state, uint16_t lane);
  void OnLaneDialled(PeerState& state, uint16_t lane,
                     const asio::error_code& error);
  // The hello of a lane is fine.
  void AdoptLane(PeerState& state,
                 const std::shared_ptr<Connection>& connection, uint16_t lane,
                 bool dialled);
  void RedialLanesLater(PeerState& state);
  // False: it is none of the peer's.
  bool OnLaneClosed(PeerState& state, const Connection& connection,
                    const absl::Status& why);
  // Only data and what proves a lane goes there.
  void RefuseOnLane(Connection& connection);
  static void CloseLanes(PeerState& state);
  static Lane* FindLane(PeerState& state, const Connection& connection);

  PeerState* Find(const std::string& agent);
  bool DialsFirst(const std::string& agent) const {
    return options_.nobody_dials || options_.agent < agent;
  }
  absl::Duration FirstBackoff(const std::string& agent) const;

  // Accepts or closes a connection whose hello is here, or lets it wait.
  void TryFinishHandshake(const std::shared_ptr<Connection>& connection);
  // The same for all whose hello is here.
  void TryFinishHandshakes();
  // False: the connection was closed, or has to wait.
  bool MayAnswer(PeerState& state,
                 const std::shared_ptr<Connection>& connection,
                 uint64_t hello_number);
  void Adopt(PeerState& state, const std::shared_ptr<Connection>& connection,
             uint64_t hello_number);
  // Lets the peer know which keys this agent has, before anything else is said.
  void ShowKeys(PeerState& state);
  // It is no member of a generation that it speaks of.
  void RefuseStranger(Connection& connection, const absl::Status& why);
  // Why a hello is refused.
  //   Unavailable: its sender is no wanted peer, or not yet.
  absl::Status CheckHello(const Connection& connection,
                          const protocol::PeerHello& hello,
                          const std::string& dialled_agent) const;
  void LogRefusal(const Connection& connection, const std::string& dialled,
                  const absl::Status& why);
  protocol::PeerHello OwnHello(const std::string& expected, uint16_t lane = 0);
  void TickLater();
  void ShareUplink();

  // ListenerOwner:
  void OnAccepted(asio::ip::tcp::socket socket,
                  base::ConnectionPlaces::Place place) override;
  void OnGaveWay(const base::ConnectionPlaces::GaveWay& gave_way) override;
  void OnNotAccepted(base::Refusal refusal, const std::string& source,
                     const std::string& why) override;
  // ConnectionOwner:
  absl::Status CheckPeer(const Connection& connection) override;
  void OnHello(const std::shared_ptr<Connection>& connection,
               const protocol::PeerHello& hello) override;
  void OnData(Connection& connection, Frame frame) override;
  void OnKeyProof(Connection& connection,
                  const protocol::KeyProof& proof) override;
  void OnLaneProof(Connection& connection,
                   const protocol::LaneProof& proof) override;
  void OnControl(Connection& connection,
                 const protocol::GroupControl& control) override;
  void OnClosed(const std::shared_ptr<Connection>& connection,
                const absl::Status& why) override;

  asio::io_context& io_;
  Options options_;
  TransportEvents* const events_;
  base::WhileHere here_;
  std::unique_ptr<Listener> listener_;
  asio::ip::tcp::resolver resolver_;
  asio::steady_timer tick_timer_;
  std::mt19937_64 random_;
  std::unique_ptr<base::TlsSource> tls_;  // Null: plain text.
  base::TlsContext current_;              // As of the last tick.
  absl::Duration renewal_for_ = absl::InfiniteDuration();  // Their first end.
  absl::Duration renew_at_ = absl::InfiniteDuration();
  absl::Duration renew_by_ = absl::InfiniteDuration();
  base::RepeatFilter told_;
  std::map<const Connection*, base::ConnectionPlaces::Place> inbound_;
  base::RefusalCounts refused_;
  std::string cluster_id_;
  uint64_t hellos_ = 0;  // Sent.
  TrafficBySite traffic_;
  UplinkShare uplink_;
  std::map<std::string, PeerState> peers_;  // By agent.
  std::map<std::shared_ptr<Connection>, Handshake> handshakes_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TRANSPORT_H_
