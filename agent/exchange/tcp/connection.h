// One TCP connection to another agent: with certificates a TLS handshake, then
// hello both ways, then frames. Of a pair of agents one connection carries
// control and data, the others, its lanes, data only.
//
// Control overtakes data, and data never overtakes control: a lane stops to
// read while a frame has to wait for control on the pair's connection. Every
// way out (an error, a bad frame, silence, Close()) ends in exactly one
// OnClosed(), after which the owner hears nothing more.
//
// Not thread-safe: everything runs on the io_context's one thread. Handlers in
// flight share ownership, so an owner may let go of a closed connection at
// once.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_CONNECTION_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_CONNECTION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/exchange/tcp/data_flow.h"
#include "agent/exchange/tcp/frame_decoder.h"
#include "agent/exchange/tcp/send_queue.h"
#include "agent/exchange/tcp/tcp_tuning.h"
#include "agent/exchange/tcp/tls_stream.h"
#include "agent/exchange/tcp/traffic.h"
#include "asio/ip/tcp.hpp"
#include "asio/steady_timer.hpp"
#include "base/tls/tls_files.h"
#include "base/token_bucket.h"
#include "protocol/frame.h"
#include "protocol/limits.h"

namespace pactrain::agent {

class Connection;

class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // The TLS handshake is done: the peer holds the key of a certificate of our
  // CA, which is this agent's (agent()). An error closes the connection before
  // a byte is read or sent.
  virtual absl::Status CheckPeer(const Connection& connection) = 0;
  // The peer's hello came. The owner answers with Accept() or Close(), now or
  // within the handshake limit; nothing more is read until then.
  virtual void OnHello(const std::shared_ptr<Connection>& connection,
                       const protocol::PeerHello& hello) = 0;
  // A data frame, a proof or a GroupControl; only after Accept().
  virtual void OnData(Connection& connection, Frame frame) = 0;
  virtual void OnKeyProof(Connection& connection,
                          const protocol::KeyProof& proof) = 0;
  virtual void OnLaneProof(Connection& connection,
                           const protocol::LaneProof& proof) = 0;
  virtual void OnControl(Connection& connection,
                         const protocol::GroupControl& control) = 0;
  virtual void OnClosed(const std::shared_ptr<Connection>& connection,
                        const absl::Status& why) = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Limits {
    absl::Duration handshake = absl::Seconds(protocol::kHandshakeSeconds);
    // Without a byte from the peer for so long it counts as gone.
    absl::Duration suspect = absl::Seconds(10);
    size_t max_control_bytes = 8 << 20;
    absl::Duration far_rtt = kFarRtt;  // As TcpTuning.
  };

  // `owner` must outlive the connection's io_context handlers or Close() it.
  // `tls` null: plain text. `own_ends`: when its certificate ends, or one above
  // it.
  Connection(asio::ip::tcp::socket socket, const base::TlsContext& tls,
             absl::Time own_ends, const Limits& limits, ConnectionOwner* owner);

  // Sets the socket's options, shakes hands and starts to read; the hello must
  // come within limits.handshake. `side`: who dialled is the client.
  void Start(TlsStream::Side side);
  // The first frame that is sent, once hands are shaken.
  void SendHello(const protocol::PeerHello& hello);
  // The hello is fine: from here on frames go both ways; the first comes from a
  // handler of its own. `traffic` is where the bytes are counted (it outlives
  // this); `limit` may be nullptr.
  void Accept(const std::string& agent, SiteTraffic* traffic,
              std::shared_ptr<base::TokenBucket> limit);

  // Closes the connection if the peer has left too much control unread.
  void SendControl(const protocol::PeerControl& control);

  // From here on it carries data of the pair, as a lane only while the link is
  // far: frames that go by several connections come in another order from each
  // site, and a near link is filled by one. Before, data from the peer is
  // refused. After Accept().
  enum class Part { kPair, kLane };
  void Join(std::shared_ptr<DataFlow> flow, Part part);
  // There may be more data in the flow.
  void Pump();
  // Control was heard for which data may have waited.
  void Resume();

  // Once per heartbeat interval: pings, and closes a connection that is silent,
  // or one of whose certificates has ended.
  void Tick();

  // The cause reaches the owner by OnClosed(), from within this call. Closing
  // twice is fine.
  void Close(const absl::Status& why);

  // Between the last two ticks.
  const Carried& carried() const { return carried_; }
  // As TcpTuning; from the next tick on.
  void set_share(double share) { tuning_->set_share(share); }

  bool accepted() const { return traffic_ != nullptr; }
  // The peer's name, with TLS from its certificate; empty before that is known
  // or, in plain text, before Accept().
  const std::string& agent() const { return agent_; }
  // Whether its certificate names it.
  bool certified() const { return tls_.has_value(); }
  // What it shows its own certificate by.
  const base::TlsContext& context() const { return context_; }
  // When the first of both ends' certificates ends, or one above them: by
  // MonotonicNow(), so that a clock that is set closes nothing.
  absl::Duration ends() const { return std::min(own_ends_, peer_ends_); }
  // What both ends have of this connection and of no other: of TLS, or else
  // the nonces of both hellos. REQUIRES: hellos went both ways.
  std::string Binding() const;
  // "127.0.0.1:4711", for messages.
  const std::string& remote() const { return remote_; }
  // Whom it is with; empty: it broke at once.
  const std::optional<asio::ip::tcp::endpoint>& endpoint() const {
    return endpoint_;
  }

 private:
  absl::Status OnHandshake(const asio::error_code& error);
  // From here on bytes go both ways.
  void OnReady();
  absl::Status Broken(const asio::error_code& error) const;
  absl::Status Ended() const;  // For a certificate's end.
  void Read();
  void OnBytes(size_t bytes);
  void OnFrame(Frame frame);
  absl::Status OnControlFrame(const Frame& frame);
  void OnPing(const protocol::Ping& ping);
  // Handles what came and may be handled now, then reads on.
  void Drain();
  // Data to be sent, if the kernel has room for it.
  void TakeData(Batch& batch);
  void Tune();
  void PumpLater();
  void WriteBatch();
  void OnWritten(size_t bytes);

  asio::ip::tcp::socket socket_;
  // Over socket_; none: plain text.
  std::optional<TlsStream> tls_;
  std::optional<TcpTuning> tuning_;  // From Start() on.
  bool ready_ = false;
  asio::steady_timer handshake_timer_;
  asio::steady_timer egress_timer_;
  asio::steady_timer pause_timer_;
  const Limits limits_;
  ConnectionOwner* owner_;
  const std::optional<asio::ip::tcp::endpoint> endpoint_;
  const std::string remote_;
  std::string agent_;
  const base::TlsContext context_;
  absl::Duration own_ends_ = absl::InfiniteDuration();
  absl::Duration peer_ends_ = absl::InfiniteDuration();
  TlsStream::Side side_ = TlsStream::Side::kClient;
  protocol::Digest own_nonce_, peer_nonce_;
  bool closed_ = false;

  std::vector<uint8_t> read_buffer_;
  FrameDecoder decoder_;
  bool hello_received_ = false;
  bool open_ = false;          // Accept() has taken effect.
  std::vector<Frame> unread_;  // Of one read; handled once they may be.

  ControlQueue control_;
  std::shared_ptr<DataFlow> flow_;  // Null before Join().
  Part part_ = Part::kPair;
  std::vector<OutFrame> batch_;  // Being written, or waiting for the limit.
  bool writing_ = false;
  bool pausing_ = false;  // Until the kernel has sent some of what it holds.
  std::shared_ptr<base::TokenBucket> limit_;

  Carried carried_;
  SiteTraffic* traffic_ = nullptr;
  SiteTraffic before_accept_;
  absl::Duration last_received_;
  uint64_t pings_ = 0;
  absl::Duration ping_sent_;
  bool ping_open_ = false;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_CONNECTION_H_
