#include "agent/exchange/tcp/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "asio/post.hpp"
#include "asio/ssl/error.hpp"
#include "asio/write.hpp"
#include "base/check.h"

namespace pactrain::agent {
namespace {

constexpr size_t kReceiveBytes = 256 << 10;
// Until hands are shaken: strangers cost as little as they can.
constexpr size_t kHandshakeBytes = 16 << 10;
// A piece so large ends its record: more of them cost little of its own work.
constexpr size_t kLargePieceBytes = 2 << 10;

// Why OpenSSL failed just now.
asio::error_code LastError() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return asio::error::eof;
  return {static_cast<int>(error), asio::error::get_ssl_category()};
}

}  // namespace

TlsStream::TlsStream(asio::ip::tcp::socket& socket,
                     const base::TlsContext& context)
    : socket_(socket),
      ssl_(SSL_new(context.get()), SSL_free),
      clear_(SSL3_RT_MAX_PLAIN_LENGTH) {
  PT_CHECK(ssl_ != nullptr);
  BIO* const bio = BIO_new(Methods());
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
}

BIO_METHOD* TlsStream::Methods() {
  static BIO_METHOD* const methods = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "pactrain socket");
    BIO_meth_set_read(made, &TlsStream::Pull);
    BIO_meth_set_write(made, &TlsStream::Push);
    BIO_meth_set_ctrl(made, &TlsStream::Control);
    return made;
  }();
  return methods;
}

int TlsStream::Pull(BIO* bio, char* to, int size) {
  auto& unopened = static_cast<TlsStream*>(BIO_get_data(bio))->unopened_;
  BIO_clear_retry_flags(bio);
  if (unopened.empty()) {
    BIO_set_retry_read(bio);
    return -1;
  }
  const size_t n = std::min(unopened.size(), static_cast<size_t>(size));
  std::memcpy(to, unopened.data(), n);
  unopened.remove_prefix(n);
  return static_cast<int>(n);
}

int TlsStream::Push(BIO* bio, const char* from, int size) {
  auto& sealed = static_cast<TlsStream*>(BIO_get_data(bio))->sealed_;
  BIO_clear_retry_flags(bio);
  // Bytes of one type, or the compiler copies them one by one.
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  sealed.insert(sealed.end(), bytes, bytes + size);
  return size;
}

long TlsStream::Control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

void TlsStream::Handshake(Side side, Done done) {
  if (side == Side::kClient) {
    SSL_set_connect_state(ssl_.get());
  } else {
    SSL_set_accept_state(ssl_.get());
  }
  asio::post(socket_.get_executor(), [this, done = std::move(done)]() mutable {
    ContinueHandshake(std::move(done));
  });
}

void TlsStream::ContinueHandshake(Done done) {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  const bool reads = SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ;
  const asio::error_code failed =
      result == 1 || reads ? asio::error_code() : LastError();
  // In a failure, too, the peer is told why.
  Send([this, failed, reads,
        done = std::move(done)](const asio::error_code& error) mutable {
    if (failed || error || !reads) return done(failed ? failed : error);
    Receive([this, done](const asio::error_code& broken) {
      broken ? done(broken) : ContinueHandshake(done);
    });
  });
}

void TlsStream::Read(asio::mutable_buffer into, Moved done) {
  // What is here already needs a handler of its own.
  asio::post(socket_.get_executor(),
             [this, into, done = std::move(done)]() mutable {
               ContinueRead(into, std::move(done));
             });
}

void TlsStream::ContinueRead(asio::mutable_buffer into, Moved done) {
  size_t filled = 0;
  ERR_clear_error();
  while (filled < into.size() && !broken_) {
    size_t n = 0;
    const int result =
        SSL_read_ex(ssl_.get(), static_cast<uint8_t*>(into.data()) + filled,
                    into.size() - filled, &n);
    filled += n;
    if (result == 1) continue;
    if (SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ) break;
    broken_ = LastError();
  }
  if (filled > 0) return done({}, filled);
  if (broken_) return done(broken_, 0);
  auto receive = [this, into, done](const asio::error_code& error) {
    if (error) return done(error, 0);
    Receive([this, into, done](const asio::error_code& broken) {
      broken ? done(broken, 0) : ContinueRead(into, done);
    });
  };
  // No more is read before our answer to what was read (new keys) is sent: a
  // peer that reads nothing must not make that grow.
  sealed_.empty() ? receive({}) : Send(std::move(receive));
}

void TlsStream::Write(const std::vector<asio::const_buffer>& from, Moved done) {
  size_t bytes = 0;
  size_t filled = 0;
  ERR_clear_error();
  const auto seal = [&] {
    return SSL_write(ssl_.get(), clear_.data(), static_cast<int>(filled)) > 0;
  };
  bool sealed = true;
  for (asio::const_buffer rest : from) {
    bytes += rest.size();
    const bool ends_record = rest.size() >= kLargePieceBytes &&
                             rest.size() <= clear_.size() - filled;
    while (rest.size() > 0 && sealed) {
      const size_t n = std::min(rest.size(), clear_.size() - filled);
      std::memcpy(clear_.data() + filled, rest.data(), n);
      filled += n;
      rest += n;
      if (filled < clear_.size()) continue;
      sealed = seal();
      filled = 0;
    }
    if (ends_record && filled > 0 && sealed) {
      sealed = seal();
      filled = 0;
    }
  }
  if (sealed && filled > 0) sealed = seal();
  const asio::error_code failed = sealed ? asio::error_code() : LastError();
  Send([failed, bytes, done = std::move(done)](const asio::error_code& error) {
    done(failed ? failed : error, bytes);
  });
}

void TlsStream::Receive(Done done) {
  const size_t size =
      SSL_is_init_finished(ssl_.get()) ? kReceiveBytes : kHandshakeBytes;
  if (received_.size() < size) received_.resize(size);
  socket_.async_read_some(
      asio::buffer(received_),
      [this, done = std::move(done)](const asio::error_code& error, size_t n) {
        unopened_ = absl::MakeConstSpan(received_.data(), n);
        done(error);
      });
}

void TlsStream::Send(Done done) {
  if (sealed_.empty()) {
    return asio::post(socket_.get_executor(),
                      [done = std::move(done)] { done({}); });
  }
  if (sends_) {
    waiting_.push_back(std::move(done));
    return;
  }
  sends_ = true;
  std::swap(sealed_, sending_);
  sealed_.clear();
  auto sent = [this, done = std::move(done)](const asio::error_code& error,
                                             size_t) mutable {
    sends_ = false;
    if (!error && !sealed_.empty()) return Send(std::move(done));
    const auto waiting = std::exchange(waiting_, {});
    done(error);
    for (const Done& other : waiting) other(error);
  };
  asio::async_write(socket_, asio::buffer(sending_), std::move(sent));
}

std::string TlsStream::Exported() const {
  constexpr absl::string_view kLabel = "EXPORTER-PacTrain-generation";
  std::string bytes(32, '\0');
  // Fails only before hands are shaken, or without memory.
  PT_CHECK(SSL_export_keying_material(
               ssl_.get(), reinterpret_cast<unsigned char*>(bytes.data()),
               bytes.size(), kLabel.data(), kLabel.size(), nullptr, 0, 0) == 1);
  return bytes;
}

}  // namespace pactrain::agent
