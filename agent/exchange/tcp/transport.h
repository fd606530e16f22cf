// The data plane over TCP: one connection to every agent that shares a group
// with this one, kept up as long as they do.
//
// Of a pair the agent with the smaller name dials. A hello goes both ways; the
// dialled side answers it once its own generations name the dialler, so frames
// never come from a peer that this agent does not know. A lost connection is
// dialled again with growing, jittered pauses; what was queued on it is lost
// and the receiver of events is told.
//
// With certificates each connection is TLS 1.3, and a peer is who its
// certificate says: a hello that names another is refused. Who is refused there
// is logged, each reason once a minute. How many connections may be open, and
// how many whose sender is not proven, is bounded before a byte is read.
//
// Not thread-safe: everything runs on the io_context's one thread, and the
// transport is destroyed there after its io_context has stopped running.
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
#include "agent/exchange/tcp/traffic.h"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "base/connection_caps.h"
#include "base/digest.h"
#include "base/repeat_filter.h"
#include "base/tls/tls_source.h"
#include "protocol/limits.h"

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

class Transport : private ConnectionOwner {
 public:
  struct Options {
    std::string agent;
    base::Digest incarnation;
    std::string listen_address = "127.0.0.1:0";  // A numeric host.
    absl::Duration heartbeat = absl::Seconds(1);
    Connection::Limits connection;
    EgressLimits egress;
    // Connections that others opened, those in their handshake included.
    base::ConnectionCaps::Limits inbound = {
        .total = protocol::kMaxPeerConnections,
        .per_source = protocol::kMaxConnectionsPerSource,
        .from_loopback = protocol::kMaxConnectionsFromLoopback};
    // Of these, those whose hello no generation has explained yet.
    int max_handshakes = protocol::kMaxPeerHandshakes;
    base::TlsFiles tls;  // Not given: plain text.
  };

  struct Peer {
    std::string agent;
    base::Digest incarnation;  // Another process of that name is refused.
    std::string site;
    std::string address;  // "host:port"
    bool operator==(const Peer&) const = default;
  };

  // Listens. `events` must outlive the transport.
  //   InvalidArgument: the address is not "host:port" with a numeric host.
  //                    Or as MakeTlsContext() of base/tls.
  //   Unavailable:     it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Transport>> Start(
      asio::io_context& io, const Options& options, TransportEvents* events);
  ~Transport() override;

  // "127.0.0.1:4711", with the port that was taken.
  std::string listen_address() const;

  // Once known, peers of another cluster are refused.
  void SetClusterId(absl::string_view cluster_id);

  // Exactly these peers are wanted from now on. Connections to others, or to
  // another incarnation, are closed without OnPeerDisconnected().
  void SetPeers(const std::vector<Peer>& peers);

  bool IsConnected(const std::string& agent) const;

  // Frames for a peer that is not connected are dropped: its
  // OnPeerDisconnected() has been told or no OnPeerConnected() yet.
  void SendData(const std::string& agent, const protocol::FrameHeader& header,
                Payload payload);
  void SendControl(const std::string& agent,
                   const protocol::GroupControl& control);

  // Drops the connection, if there is one; it is dialled anew.
  void ClosePeer(const std::string& agent, const std::string& reason);

  const TrafficBySite& traffic() const { return traffic_; }
  const base::RefusalCounts& refused() const { return refused_; }

 private:
  struct PeerState {
    explicit PeerState(asio::io_context& io) : redial_timer(io) {}
    Peer peer;
    std::shared_ptr<Connection>
        connection;  // Dialled or accepted; may be null.
    asio::steady_timer redial_timer;
    absl::Duration backoff;
    bool dialling = false;
  };
  // Connections in their handshake; the hello of an inbound one may wait here
  // for SetPeers() to name its sender.
  struct Handshake {
    std::string dialled_agent;  // Empty: inbound.
    std::optional<protocol::PeerHello> hello;
  };

  Transport(asio::io_context& io, const Options& options,
            TransportEvents* events);
  absl::Status Listen();
  void AcceptNext();
  void OnInbound(asio::ip::tcp::socket socket,
                 const asio::ip::tcp::endpoint& remote);
  // Whether one more may be opened; counts it.
  absl::Status AdmitInbound(const std::string& source, base::Refusal* refusal);
  void ForgetInbound(const Connection& connection);
  std::shared_ptr<Connection> NewConnection(asio::ip::tcp::socket socket);

  void Dial(PeerState& state);
  void OnDialled(const std::string& agent, asio::ip::tcp::socket socket,
                 const asio::error_code& error);
  void RedialLater(PeerState& state);
  PeerState* Find(const std::string& agent);
  bool WeDial(const std::string& agent) const { return options_.agent < agent; }
  int CountUnproven() const;

  // Accepts or closes a connection whose hello is here, or lets it wait.
  void TryFinishHandshake(const std::shared_ptr<Connection>& connection);
  void Adopt(PeerState& state, const std::shared_ptr<Connection>& connection);
  // Why a hello is refused.
  //   Unavailable: its sender is no wanted peer, or not yet.
  absl::Status CheckHello(const Connection& connection,
                          const protocol::PeerHello& hello,
                          const std::string& dialled_agent) const;
  void LogRefusal(const Connection& connection, const std::string& dialled,
                  const absl::Status& why);
  protocol::PeerHello OwnHello(const std::string& expected) const;
  void TickLater();

  // ConnectionOwner:
  absl::Status CheckPeer(const Connection& connection) override;
  void OnHello(const std::shared_ptr<Connection>& connection,
               const protocol::PeerHello& hello) override;
  void OnData(Connection& connection, Frame frame) override;
  void OnControl(Connection& connection,
                 const protocol::GroupControl& control) override;
  void OnClosed(const std::shared_ptr<Connection>& connection,
                const absl::Status& why) override;

  asio::io_context& io_;
  Options options_;
  TransportEvents* const events_;
  asio::ip::tcp::acceptor acceptor_;
  asio::ip::tcp::resolver resolver_;
  asio::steady_timer tick_timer_;
  std::mt19937_64 random_;
  std::unique_ptr<base::TlsSource> tls_;  // Null: plain text.
  base::RepeatFilter told_;
  base::ConnectionCaps inbound_caps_;
  std::map<const Connection*, std::string> inbound_;  // With their sources.
  base::RefusalCounts refused_;
  asio::steady_timer accept_timer_;
  std::string cluster_id_;
  TrafficBySite traffic_;
  std::map<std::string, PeerState> peers_;  // By agent.
  std::map<std::shared_ptr<Connection>, Handshake> handshakes_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TRANSPORT_H_
