#include "base/metrics/http_front.h"

#include <openssl/ssl.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "asio/connect.hpp"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/post.hpp"
#include "asio/ssl.hpp"
#include "asio/steady_timer.hpp"
#include "asio/write.hpp"
#include "base/connection_places.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/tls/tls_source.h"

namespace pactrain::base {
namespace {

using asio::ip::tcp;
using Error = asio::error_code;

// Whose decrypted connections are, by their port of loopback.
class Sources {
 public:
  void Set(uint16_t port, HttpFront::Client client) {
    MutexLock lock(&mu_);
    by_port_[port] = std::move(client);
  }
  void Remove(uint16_t port) {
    MutexLock lock(&mu_);
    by_port_.erase(port);
  }
  HttpFront::Client Get(uint16_t port) const {
    MutexLock lock(&mu_);
    const auto it = by_port_.find(port);
    return it == by_port_.end() ? HttpFront::Client() : it->second;
  }

 private:
  mutable Mutex mu_;
  std::map<uint16_t, HttpFront::Client> by_port_ ABSL_GUARDED_BY(mu_);
};

asio::ssl::context ContextOf(const TlsContext& context) {
  SSL_CTX_up_ref(context.get());
  return asio::ssl::context(context.get());
}

// One connection. Lives as long as it has something under way.
class Session : public std::enable_shared_from_this<Session> {
 public:
  struct Owner {
    std::function<void(ConnectionPlaces::Place)> on_gone;
    Sources* sources;
    HttpFront::Limits limits;
  };
  // Null: plain text.
  Session(tcp::socket client, const TlsContext* context, const Owner* owner,
          std::string source, ConnectionPlaces::Place place)
      : limits_(owner->limits),
        owner_(owner),
        place_(place),
        client_(std::move(client)),
        server_(client_.get_executor()),
        timer_(client_.get_executor()),
        source_(std::move(source)) {
    if (context == nullptr) return;
    context_.emplace(ContextOf(*context));
    tls_.emplace(client_, *context_);
    // Clients show no certificate; ours do so everywhere else.
    SSL_set_verify(tls_->native_handle(), SSL_VERIFY_NONE, nullptr);
  }
  ~Session() {
    if (port_ != 0) owner_->sources->Remove(port_);
    owner_->on_gone(place_);
  }

  void Start(const tcp::endpoint& target) {
    target_ = target;
    CloseAfter(limits_.request);
    if (!tls_) return ReadHead();
    tls_->async_handshake(asio::ssl::stream_base::server,
                          [self = shared_from_this()](const Error& error) {
                            if (!error) self->ReadHead();
                          });
  }
  void Close() {
    Error none;
    timer_.cancel();
    client_.close(none);
    server_.close(none);
  }

 private:
  static constexpr size_t kBufferBytes = 16 << 10;
  using Buffer = std::array<char, kBufferBytes>;

  void CloseAfter(absl::Duration time) {
    timer_.expires_after(absl::ToChronoNanoseconds(time));
    timer_.async_wait([weak = weak_from_this()](const Error& error) {
      const auto self = weak.lock();
      if (self && !error) self->Close();
    });
  }
  template <typename Then>
  void ReadClient(asio::mutable_buffer into, Then then) {
    if (tls_) return tls_->async_read_some(into, std::move(then));
    client_.async_read_some(into, std::move(then));
  }
  template <typename Then>
  void WriteClient(asio::const_buffer bytes, Then then) {
    if (tls_) return asio::async_write(*tls_, bytes, std::move(then));
    asio::async_write(client_, bytes, std::move(then));
  }

  void ReadHead() {
    if (head_ == up_.size()) return Close();  // Longer than any of ours.
    ReadClient(asio::buffer(up_) + head_,
               [self = shared_from_this()](const Error& error, size_t got) {
                 if (error) return self->Close();
                 self->head_ += got;
                 const absl::string_view head(self->up_.data(), self->head_);
                 if (!absl::StrContains(head, "\r\n\r\n"))
                   return self->ReadHead();
                 self->CloseAfter(self->limits_.silence);
                 self->Connect(self->target_);
               });
  }

  void Connect(const tcp::endpoint& target) {
    Error error;
    server_.open(target.protocol(), error);
    // Known before the server may ask.
    if (!error) server_.bind({target.address(), 0}, error);
    if (!error) port_ = server_.local_endpoint(error).port();
    if (error) return Close();
    owner_->sources->Set(port_, {source_, place_});
    server_.async_connect(target,
                          [self = shared_from_this()](const Error& error) {
                            if (error) return self->Close();
                            self->Forward(self->head_);
                            self->Down();
                          });
  }

  void Up() {
    ReadClient(asio::buffer(up_),
               [self = shared_from_this()](const Error& error, size_t bytes) {
                 // Who has said all may still want the answer.
                 if (error == asio::error::eof && !self->tls_) return;
                 if (error) return self->Close();
                 if (!self->writes_) self->CloseAfter(self->limits_.silence);
                 self->Forward(bytes);
               });
  }
  void Forward(size_t bytes) {
    asio::async_write(server_, asio::buffer(up_, bytes),
                      [self = shared_from_this()](const Error& error, size_t) {
                        if (error) return self->Close();
                        self->Up();
                      });
  }

  void Down() {
    server_.async_read_some(
        asio::buffer(down_),
        [self = shared_from_this()](const Error& error, size_t bytes) {
          if (error) return self->End();
          // Who does not read is dropped before who has nothing to read.
          self->CloseAfter(self->limits_.request);
          self->writes_ = true;
          self->WriteClient(asio::buffer(self->down_, bytes),
                            [self](const Error& error, size_t) {
                              self->writes_ = false;
                              if (error) return self->Close();
                              self->CloseAfter(self->limits_.silence);
                              self->Down();
                            });
        });
  }

  // All of the answer is on its way.
  void End() {
    if (tls_) {
      return tls_->async_shutdown(
          [self = shared_from_this()](const Error&) { self->Close(); });
    }
    Error none;
    client_.shutdown(tcp::socket::shutdown_send, none);
    Close();
  }

  const HttpFront::Limits limits_;
  const Owner* const owner_;
  const ConnectionPlaces::Place place_;
  tcp::socket client_;
  std::optional<asio::ssl::context> context_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
  tcp::socket server_;
  tcp::endpoint target_;
  asio::steady_timer timer_;
  const std::string source_;
  uint16_t port_ = 0;
  bool writes_ = false;  // To the client.
  size_t head_ = 0;      // Bytes of it in up_.
  Buffer up_, down_;
};

}  // namespace

class HttpFront::Impl {
 public:
  // `tls` null: plain text.
  Impl(std::unique_ptr<TlsSource> tls, const HostPort& target,
       const Limits& limits)
      : tls_(std::move(tls)),
        target_(asio::ip::make_address(target.host), target.port),
        limits_(limits),
        places_({{limits.connections, limits.connections, limits.connections},
                 limits.connections}),
        owner_{[this](auto place) {
                 places_.Release(place);
                 sessions_.erase(place);
               },
               &sources_, limits},
        acceptor_(io_) {}
  ~Impl() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::StatusOr<HostPort> Open(const HostPort& listen) {
    Error error;
    const tcp::endpoint wanted(asio::ip::make_address(listen.host, error),
                               listen.port);
    if (!error) acceptor_.open(wanted.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(wanted, error);
    if (!error) acceptor_.listen(limits_.connections, error);
    if (error) return absl::UnavailableError(error.message());
    HostPort bound = listen;
    bound.port = acceptor_.local_endpoint(error).port();
    Accept();
    thread_ = std::thread([this] { io_.run(); });
    return bound;
  }
  Client ClientOf(uint16_t port) const { return sources_.Get(port); }
  void Keep(ConnectionPlaces::Place place) {
    asio::post(io_, [this, place] { places_.Prove(place); });
  }
  void Close(ConnectionPlaces::Place place) {
    asio::post(io_, [this, place] { CloseAt(place); });
  }

 private:
  void Accept() {
    acceptor_.async_accept([this](const Error& error, tcp::socket client) {
      if (!acceptor_.is_open()) return;
      if (error) return AcceptLater();  // Without descriptors, perhaps.
      Admit(std::move(client));
      Accept();
    });
  }
  void Admit(tcp::socket client) {
    Error error;
    const tcp::endpoint from = client.remote_endpoint(error);
    if (error) return;  // It has hung up.
    Refusal limit = {};
    const auto admission = places_.Admit(base::SourceOf(from.data()), &limit);
    if (!admission.ok()) return;
    if (admission->gave_way) CloseAt(admission->gave_way->place);
    const auto session = std::make_shared<Session>(
        std::move(client), tls_ == nullptr ? nullptr : &tls_->Get(), &owner_,
        from.address().to_string(), admission->place);
    sessions_[admission->place] = session;
    session->Start(target_);
  }
  void CloseAt(ConnectionPlaces::Place place) {
    const auto it = sessions_.find(place);
    const auto session = it == sessions_.end() ? nullptr : it->second.lock();
    if (session != nullptr) session->Close();
  }
  void AcceptLater() {
    pause_.expires_after(std::chrono::milliseconds(100));
    pause_.async_wait([this](const Error& error) {
      if (!error) Accept();
    });
  }

  const std::unique_ptr<TlsSource> tls_;
  const tcp::endpoint target_;
  const Limits limits_;
  Sources sources_;
  // Of the thread, as what follows; sessions outlive neither.
  ConnectionPlaces places_;
  std::map<ConnectionPlaces::Place, std::weak_ptr<Session>> sessions_;
  const Session::Owner owner_;
  asio::io_context io_{1};  // Ends the sessions, which use what is above.
  tcp::acceptor acceptor_;
  asio::steady_timer pause_{io_};
  std::thread thread_;
};

HttpFront::HttpFront() = default;
HttpFront::~HttpFront() = default;

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Start(
    const HostPort& listen, const TlsFiles& files, const HostPort& target,
    const Limits& limits) {
  std::unique_ptr<TlsSource> tls;
  if (files.given()) {
    ASSIGN_OR_RETURN(tls, TlsSource::Open(files));
  }
  std::unique_ptr<HttpFront> front(new HttpFront());
  front->impl_ = std::make_unique<Impl>(std::move(tls), target, limits);
  ASSIGN_OR_RETURN(front->address_, front->impl_->Open(listen));
  return front;
}

HttpFront::Client HttpFront::ClientOf(uint16_t port) const {
  return impl_->ClientOf(port);
}

void HttpFront::Keep(ConnectionPlaces::Place place) { impl_->Keep(place); }

void HttpFront::Close(ConnectionPlaces::Place place) { impl_->Close(place); }

}  // namespace pactrain::base
