#include "base/metrics/tls_front.h"

#include <openssl/ssl.h>

#include <array>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "asio/connect.hpp"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/post.hpp"
#include "asio/ssl.hpp"
#include "asio/steady_timer.hpp"
#include "asio/write.hpp"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/tls/tls_source.h"

namespace pactrain::base {
namespace {

using asio::ip::tcp;
using Error = asio::error_code;

// Where decrypted connections come from, by their port of loopback.
class Sources {
 public:
  void Set(uint16_t port, std::string source) {
    MutexLock lock(&mu_);
    by_port_[port] = std::move(source);
  }
  void Remove(uint16_t port) {
    MutexLock lock(&mu_);
    by_port_.erase(port);
  }
  std::string Get(uint16_t port) const {
    MutexLock lock(&mu_);
    const auto it = by_port_.find(port);
    return it == by_port_.end() ? "" : it->second;
  }

 private:
  mutable Mutex mu_;
  std::map<uint16_t, std::string> by_port_ ABSL_GUARDED_BY(mu_);
};

asio::ssl::context ContextOf(const TlsContext& context) {
  SSL_CTX_up_ref(context.get());
  return asio::ssl::context(context.get());
}

// One connection. Lives as long as it has something under way.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket client, const TlsContext& context, Sources* sources,
          const TlsFront::Limits& limits, std::shared_ptr<void> place)
      : limits_(limits),
        place_(std::move(place)),
        sources_(sources),
        context_(ContextOf(context)),
        client_(std::move(client), context_),
        server_(client_.get_executor()),
        timer_(client_.get_executor()) {
    // Clients show no certificate; ours do so everywhere else.
    SSL_set_verify(client_.native_handle(), SSL_VERIFY_NONE, nullptr);
    Error none;
    source_ =
        client_.lowest_layer().remote_endpoint(none).address().to_string();
  }
  ~Session() {
    if (port_ != 0) sources_->Remove(port_);
  }

  void Start(const tcp::endpoint& target) {
    CloseAfter(limits_.handshake);
    client_.async_handshake(
        asio::ssl::stream_base::server,
        [self = shared_from_this(), target](const Error& error) {
          if (!error) self->Connect(target);
        });
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
  void Close() {
    Error none;
    timer_.cancel();
    client_.lowest_layer().close(none);
    server_.close(none);
  }

  void Connect(const tcp::endpoint& target) {
    Error error;
    server_.open(target.protocol(), error);
    // Known before the server may ask.
    if (!error) server_.bind({target.address(), 0}, error);
    if (!error) port_ = server_.local_endpoint(error).port();
    if (error) return Close();
    sources_->Set(port_, source_);
    server_.async_connect(target,
                          [self = shared_from_this()](const Error& error) {
                            if (error) return self->Close();
                            self->Up();
                            self->Down();
                          });
  }

  void Up() {
    client_.async_read_some(
        asio::buffer(up_),
        [self = shared_from_this()](const Error& error, size_t bytes) {
          if (error) return self->Close();
          self->CloseAfter(self->limits_.silence);
          asio::async_write(self->server_, asio::buffer(self->up_, bytes),
                            [self](const Error& error, size_t) {
                              if (error) return self->Close();
                              self->Up();
                            });
        });
  }

  void Down() {
    server_.async_read_some(
        asio::buffer(down_),
        [self = shared_from_this()](const Error& error, size_t bytes) {
          if (error) {  // All of the answer is on its way.
            return self->client_.async_shutdown(
                [self](const Error&) { self->Close(); });
          }
          self->CloseAfter(self->limits_.silence);
          asio::async_write(self->client_, asio::buffer(self->down_, bytes),
                            [self](const Error& error, size_t) {
                              if (error) return self->Close();
                              self->Down();
                            });
        });
  }

  const TlsFront::Limits limits_;
  const std::shared_ptr<void> place_;
  Sources* const sources_;
  asio::ssl::context context_;
  asio::ssl::stream<tcp::socket> client_;
  tcp::socket server_;
  asio::steady_timer timer_;
  std::string source_;
  uint16_t port_ = 0;
  Buffer up_, down_;
};

}  // namespace

class TlsFront::Impl {
 public:
  Impl(std::unique_ptr<TlsSource> tls, const HostPort& target,
       const Limits& limits)
      : tls_(std::move(tls)),
        target_(asio::ip::make_address(target.host), target.port),
        limits_(limits),
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
  std::string SourceOf(uint16_t port) const { return sources_.Get(port); }

 private:
  void Accept() {
    acceptor_.async_accept([this](const Error& error, tcp::socket client) {
      if (!acceptor_.is_open()) return;
      if (error) return AcceptLater();  // Without descriptors, perhaps.
      if (places_.use_count() <= limits_.connections) {
        std::make_shared<Session>(std::move(client), tls_->Get(), &sources_,
                                  limits_, places_)
            ->Start(target_);
      }
      Accept();
    });
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
  // One owner more for each connection.
  std::shared_ptr<void> places_ = std::make_shared<int>();
  asio::io_context io_{1};  // Ends the sessions, which use what is above.
  tcp::acceptor acceptor_;
  asio::steady_timer pause_{io_};
  std::thread thread_;
};

TlsFront::TlsFront() = default;
TlsFront::~TlsFront() = default;

absl::StatusOr<std::unique_ptr<TlsFront>> TlsFront::Start(
    const HostPort& listen, const TlsFiles& files, const HostPort& target,
    const Limits& limits) {
  ASSIGN_OR_RETURN(std::unique_ptr<TlsSource> tls, TlsSource::Open(files));
  std::unique_ptr<TlsFront> front(new TlsFront());
  front->impl_ = std::make_unique<Impl>(std::move(tls), target, limits);
  ASSIGN_OR_RETURN(front->address_, front->impl_->Open(listen));
  return front;
}

std::string TlsFront::SourceOf(uint16_t port) const {
  return impl_->SourceOf(port);
}

}  // namespace pactrain::base
