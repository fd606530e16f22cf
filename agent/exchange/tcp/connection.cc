#include "agent/exchange/tcp/connection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "asio/buffer.hpp"
#include "asio/ssl/error.hpp"
#include "asio/write.hpp"
#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/tls/certificate_facts.h"
#include "base/tls/tls_trouble.h"
#include "protocol/identity.h"

namespace pactrain::agent {
namespace {

using protocol::GroupControl;
using protocol::Leg;
using protocol::PeerControl;
using protocol::PeerHello;
using protocol::Ping;

constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kWriteFrames = 32;  // Two buffers each: what one writev takes.
// With an egress limit a batch is small, so that control soon gets its turn and
// several connections to a site share the link evenly.
constexpr size_t kLimitedWriteBytes = 16 << 10;
constexpr double kNewRttWeight = 0.2;
constexpr absl::Duration kNearEnd = absl::Seconds(1);  // As heartbeats differ.

std::optional<asio::ip::tcp::endpoint> RemoteOf(
    const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return std::nullopt;
  return endpoint;
}

std::string NameOf(const std::optional<asio::ip::tcp::endpoint>& endpoint) {
  if (!endpoint) return "(gone)";
  return absl::StrCat(endpoint->address().to_string(), ":", endpoint->port());
}

// On the clock that is never set.
absl::Duration Until(absl::Time end) {
  return base::MonotonicNow() + (end - absl::Now());
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket,
                       const base::TlsContext& tls, absl::Time own_ends,
                       const Limits& limits, ConnectionOwner* owner)
    : socket_(std::move(socket)),
      handshake_timer_(socket_.get_executor()),
      egress_timer_(socket_.get_executor()),
      pause_timer_(socket_.get_executor()),
      limits_(limits),
      owner_(owner),
      endpoint_(RemoteOf(socket_)),
      remote_(NameOf(endpoint_)),
      context_(tls),
      control_(limits.max_control_bytes) {
  if (tls == nullptr) return;
  tls_.emplace(socket_, tls);
  own_ends_ = Until(own_ends);
}

void Connection::Start(TlsStream::Side side) {
  side_ = side;
  tuning_.emplace(socket_.native_handle(), limits_.suspect, limits_.far_rtt);
  handshake_timer_.expires_after(absl::ToChronoNanoseconds(limits_.handshake));
  handshake_timer_.async_wait(
      [self = shared_from_this()](const asio::error_code& error) {
        if (error || self->accepted()) return;
        self->Close(absl::DeadlineExceededError(
            absl::StrCat("no handshake with ", self->remote_, " within ",
                         absl::FormatDuration(self->limits_.handshake))));
      });
  if (!tls_) return OnReady();
  tls_->Handshake(side,
                  [self = shared_from_this()](const asio::error_code& error) {
                    if (self->closed_) return;
                    const absl::Status done = self->OnHandshake(error);
                    done.ok() ? self->OnReady() : self->Close(done);
                  });
}

absl::Status Connection::OnHandshake(const asio::error_code& error) {
  const SSL* const ssl = tls_->ssl();
  if (error) {
    const long verified = SSL_get_verify_result(ssl);
    if (verified == X509_V_OK) return Broken(error);
    return absl::UnauthenticatedError(absl::StrCat(
        "connection with ", remote_, ": ", base::WhyUnverified(verified)));
  }
  ASSIGN_OR_RETURN(
      const protocol::Identity peer,
      protocol::IdentityOf(base::UrisOf(SSL_get0_peer_certificate(ssl))));
  if (peer.role != protocol::Role::kAgent) {
    return absl::PermissionDeniedError(absl::StrCat(
        remote_, " is no agent: its certificate is of ", peer.ToString()));
  }
  agent_ = peer.name;
  peer_ends_ = Until(base::FactsOf(ssl).until);
  return owner_->CheckPeer(*this);
}

void Connection::OnReady() {
  ready_ = true;
  // Not before hands are shaken: strangers cost as little as they can.
  read_buffer_.resize(kReadBytes);
  Pump();
  Read();
}

absl::Status Connection::Ended() const {
  return absl::UnauthenticatedError(absl::StrCat(
      "the certificate of ",
      peer_ends_ <= own_ends_ ? absl::StrCat("agent ", agent_) : "this agent",
      ", or its CA's, has ended"));
}

absl::Status Connection::Broken(const asio::error_code& error) const {
  // The peer may have looked at the time first.
  if (accepted() && base::MonotonicNow() + kNearEnd >= ends()) return Ended();
  const std::string text =
      absl::StrCat("connection with ", remote_, ": ", error.message());
  if (error.category() != asio::error::get_ssl_category()) {
    return absl::UnavailableError(text);
  }
  // What OpenSSL itself has to say is no accident of the network.
  const absl::string_view why =
      base::WhyTlsFailed(static_cast<unsigned long>(error.value()));
  return absl::UnauthenticatedError(
      why.empty() ? text : absl::StrCat(text, ": ", why));
}

void Connection::SendHello(const PeerHello& hello) {
  own_nonce_ = hello.nonce;
  SendControl(hello);
}

std::string Connection::Binding() const {
  if (tls_) return tls_->Exported();
  const bool dialled = side_ == TlsStream::Side::kClient;
  return absl::StrCat((dialled ? own_nonce_ : peer_nonce_).ToString(),
                      (dialled ? peer_nonce_ : own_nonce_).ToString());
}

void Connection::Accept(const std::string& agent, SiteTraffic* traffic,
                        std::shared_ptr<base::TokenBucket> limit) {
  agent_ = agent;
  traffic_ = traffic;
  traffic_->sent_bytes += before_accept_.sent_bytes;
  traffic_->received_bytes += before_accept_.received_bytes;
  limit_ = std::move(limit);
  last_received_ = base::MonotonicNow();
  handshake_timer_.cancel();
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->open_ = true;
    self->Drain();
  });
}

void Connection::SendControl(const PeerControl& control) {
  if (closed_) return;
  const absl::Status pushed = control_.Push(OutFrame(control));
  if (!pushed.ok()) return Close(pushed);
  Pump();
}

void Connection::Join(std::shared_ptr<DataFlow> flow, Part part) {
  flow_ = std::move(flow);
  part_ = part;
  Tune();
  Pump();
}

void Connection::Tune() {
  const bool was_lossy = tuning_->is_lossy();
  const bool lacked_control = tuning_->lacks_control();
  tuning_->Update(socket_.native_handle());
  if (tuning_->lacks_control() && !lacked_control) {
    LOG_WARN(
        "{} loses packets, and the system does not let its connection use bbr "
        "(sysctl net.ipv4.tcp_allowed_congestion_control, modprobe tcp_bbr; "
        "then restart the agent)",
        remote_);
  }
  if (tuning_->is_lossy() && !was_lossy) {
    LOG_INFO("{} loses packets: its connection goes over to bbr", remote_);
  }
  if (flow_ == nullptr || part_ != Part::kPair) return;
  if (tuning_->is_far() && !flow_->far()) {
    LOG_INFO("{} is far: what is sent is shared among its connections{}",
             remote_,
             SlowStartsAfterIdle()
                 ? "; each step starts slowly unless sysctl "
                   "net.ipv4.tcp_slow_start_after_idle=0 is set here"
                 : "");
  }
  flow_->set_far(tuning_->is_far());
}

void Connection::Resume() {
  if (!unread_.empty()) Drain();
}

void Connection::Drain() {
  if (closed_ || !open_) return;
  for (Frame& frame : std::exchange(unread_, {})) OnFrame(std::move(frame));
  if (unread_.empty()) Read();
}

void Connection::Tick() {
  if (closed_ || !accepted()) return;
  const absl::Duration now = base::MonotonicNow();
  Tune();
  carried_ = tuning_->TakeCarried();
  traffic_->busy += carried_.busy;
  if (tuning_->is_lossy()) ++traffic_->bbr_connections;
  // Lanes that stand by remember the rate of another time.
  if (flow_ != nullptr && (part_ == Part::kPair || flow_->far())) {
    traffic_->goodput_bytes_per_second += tuning_->goodput();
  }
  if (limit_ != nullptr) {
    traffic_->goodput_bytes_per_second = std::min(
        traffic_->goodput_bytes_per_second, limit_->bytes_per_second());
  }
  if (now >= ends()) return Close(Ended());
  if (now - last_received_ > limits_.suspect) {
    return Close(absl::DeadlineExceededError(
        absl::StrCat("nothing came from ", remote_, " for ",
                     absl::FormatDuration(limits_.suspect))));
  }
  // The peer pings as well, so one open ping is enough to keep both sides sure.
  if (ping_open_) return;
  ping_open_ = true;
  ping_sent_ = now;
  SendControl(Ping{.id = ++pings_, .echo = false});
}

void Connection::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  const auto self = shared_from_this();  // The owner may let go of us.
  asio::error_code ignored;
  handshake_timer_.cancel();
  egress_timer_.cancel();
  pause_timer_.cancel();
  socket_.close(ignored);
  owner_->OnClosed(self, why);
}

void Connection::Read() {
  if (closed_) return;
  auto done = [self = shared_from_this()](const asio::error_code& error,
                                          size_t bytes) {
    if (self->closed_) return;
    if (error) return self->Close(self->Broken(error));
    self->OnBytes(bytes);
  };
  if (tls_) {
    tls_->Read(asio::buffer(read_buffer_), std::move(done));
  } else {
    socket_.async_read_some(asio::buffer(read_buffer_), std::move(done));
  }
}

void Connection::OnBytes(size_t bytes) {
  last_received_ = base::MonotonicNow();
  (accepted() ? *traffic_ : before_accept_).received_bytes += bytes;
  std::vector<Frame> frames;
  const absl::Status fed =
      decoder_.Feed(absl::MakeConstSpan(read_buffer_.data(), bytes), &frames);
  // Frames before the damage are whole.
  for (Frame& frame : frames) OnFrame(std::move(frame));
  if (!fed.ok()) {
    return Close(absl::Status(fed.code(),
                              absl::StrCat("from ", remote_, ": ",
                                           absl::string_view(fed.message()))));
  }
  // After the hello nothing more is read until Accept(), nor while a frame has
  // to wait: Drain() reads on.
  if ((!hello_received_ || open_) && unread_.empty()) Read();
}

void Connection::OnFrame(Frame frame) {
  if (closed_) return;
  if ((hello_received_ && !open_) || !unread_.empty()) {
    unread_.push_back(std::move(frame));
    return;
  }
  if (frame.header.leg == Leg::kControl) {
    const absl::Status handled = OnControlFrame(frame);
    if (!handled.ok()) Close(handled);
    return;
  }
  if (!hello_received_) {
    return Close(absl::FailedPreconditionError(
        absl::StrCat(remote_, " sent data before its hello")));
  }
  if (flow_ == nullptr) {
    return Close(absl::UnauthenticatedError(absl::StrCat(
        remote_, " sent data on a lane before it showed whose it is")));
  }
  if (!flow_->IsDue(frame.header)) {
    unread_.push_back(std::move(frame));
    return;
  }
  owner_->OnData(*this, std::move(frame));
}

absl::Status Connection::OnControlFrame(const Frame& frame) {
  ASSIGN_OR_RETURN(const PeerControl control,
                   protocol::DecodeControl(frame.payload.bytes));
  const auto* hello = std::get_if<PeerHello>(&control);
  if ((hello != nullptr) == hello_received_) {
    return absl::FailedPreconditionError(
        absl::StrCat(remote_, hello_received_ ? " sent a second hello"
                                              : " did not send a hello first"));
  }
  if (hello != nullptr) {
    hello_received_ = true;
    peer_nonce_ = hello->nonce;
    owner_->OnHello(shared_from_this(), *hello);
  } else if (const auto* ping = std::get_if<Ping>(&control)) {
    OnPing(*ping);
  } else if (const auto* proof = std::get_if<protocol::KeyProof>(&control)) {
    owner_->OnKeyProof(*this, *proof);
  } else if (const auto* lane = std::get_if<protocol::LaneProof>(&control)) {
    owner_->OnLaneProof(*this, *lane);
  } else {
    owner_->OnControl(*this, std::get<GroupControl>(control));
  }
  return absl::OkStatus();
}

void Connection::OnPing(const Ping& ping) {
  if (!ping.echo) return SendControl(Ping{.id = ping.id, .echo = true});
  if (!ping_open_ || ping.id != pings_) return;
  ping_open_ = false;
  const absl::Duration rtt = last_received_ - ping_sent_;
  absl::Duration& smoothed = traffic_->rtt;
  smoothed = smoothed == absl::ZeroDuration()
                 ? rtt
                 : kNewRttWeight * rtt + (1 - kNewRttWeight) * smoothed;
}

void Connection::Pump() {
  if (closed_ || writing_ || !ready_) return;
  Batch batch(
      limit_ == nullptr ? BatchBytes(tuning_->goodput()) : kLimitedWriteBytes,
      kWriteFrames);
  control_.MoveTo(batch);
  TakeData(batch);
  batch_ = std::move(batch.frames);
  if (batch_.empty()) return;
  writing_ = true;
  if (limit_ == nullptr) return WriteBatch();
  const absl::Duration wait = limit_->Take(batch.bytes, base::MonotonicNow());
  if (wait <= absl::ZeroDuration()) return WriteBatch();
  egress_timer_.expires_after(absl::ToChronoNanoseconds(wait));
  egress_timer_.async_wait(
      [self = shared_from_this()](const asio::error_code& error) {
        if (!error && !self->closed_) self->WriteBatch();
      });
}

void Connection::TakeData(Batch& batch) {
  if (flow_ == nullptr || flow_->empty()) return;
  if (part_ == Part::kLane && !flow_->far()) return;
  if (!tuning_->HasRoom(socket_.native_handle(), base::MonotonicNow())) {
    return PumpLater();
  }
  flow_->MoveTo(batch);
}

void Connection::PumpLater() {
  if (std::exchange(pausing_, true)) return;
  pause_timer_.expires_after(absl::ToChronoNanoseconds(kPause));
  pause_timer_.async_wait(
      [self = shared_from_this()](const asio::error_code& error) {
        self->pausing_ = false;
        if (!error) self->Pump();
      });
}

void Connection::WriteBatch() {
  std::vector<asio::const_buffer> buffers;
  buffers.reserve(2 * batch_.size());
  for (const OutFrame& frame : batch_) {
    buffers.push_back(asio::buffer(frame.header));
    if (frame.payload.bytes.empty()) continue;
    buffers.push_back(
        asio::buffer(frame.payload.bytes.data(), frame.payload.bytes.size()));
  }
  auto done = [self = shared_from_this()](const asio::error_code& error,
                                          size_t bytes) {
    if (self->closed_) return;
    if (error) return self->Close(self->Broken(error));
    self->OnWritten(bytes);
  };
  if (tls_) {
    tls_->Write(buffers, std::move(done));
  } else {
    asio::async_write(socket_, std::move(buffers), std::move(done));
  }
}

void Connection::OnWritten(size_t bytes) {
  (accepted() ? *traffic_ : before_accept_).sent_bytes += bytes;
  writing_ = false;
  batch_.clear();
  Pump();
}

}  // namespace pactrain::agent
