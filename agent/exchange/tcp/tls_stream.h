// TLS over a connected socket, for many frames at once.
//
// A write becomes one send, and small pieces share records of up to 16 KiB; a
// read takes all records that have come. asio::ssl::stream sends each piece as
// a record of its own and reads one record at a time, which doubled what an
// agent computes for an exchange. A record is of use once it is whole: so one
// ends with a large piece that fits into it, such as a frame in levels. Four of
// those in one took a slow link as long as four before the first was folded.
//
// At most one of Handshake(), Read() and Write() of each kind is under way; a
// write may go on beside a read. Handlers are never called from within the call
// that takes them, and always once: after the socket was closed with an error.
// Errors of OpenSSL are in asio::error::get_ssl_category().
//
// Not thread-safe. Neither this nor the socket may go before the handlers have
// been called: they hold what owns both.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_TLS_STREAM_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_TLS_STREAM_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "asio/buffer.hpp"
#include "asio/error_code.hpp"
#include "asio/ip/tcp.hpp"
#include "base/tls/tls_files.h"

namespace pactrain::agent {

class TlsStream {
 public:
  enum class Side { kClient, kServer };
  using Done = std::function<void(const asio::error_code&)>;
  using Moved = std::function<void(const asio::error_code&, size_t bytes)>;

  TlsStream(asio::ip::tcp::socket& socket, const base::TlsContext& context);

  void Handshake(Side side, Done done);
  // At least one byte, at most what `into` holds.
  void Read(asio::mutable_buffer into, Moved done);
  // All of `from`, which may go once this has returned.
  void Write(const std::vector<asio::const_buffer>& from, Moved done);

  const SSL* ssl() const { return ssl_.get(); }
  // 32 bytes that both ends have and nobody else, on this connection alone.
  // REQUIRES: hands are shaken.
  std::string Exported() const;

 private:
  // OpenSSL's side of the wire.
  static int Pull(BIO* bio, char* to, int size);
  static int Push(BIO* bio, const char* from, int size);
  static long Control(BIO* bio, int command, long number, void* pointer);
  static BIO_METHOD* Methods();

  void ContinueHandshake(Done done);
  void ContinueRead(asio::mutable_buffer into, Moved done);
  // Once more has come from the wire.
  void Receive(Done done);
  // Once all of sealed_ is sent.
  void Send(Done done);

  asio::ip::tcp::socket& socket_;
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  std::vector<uint8_t> received_;       // Records as they came;
  absl::Span<const uint8_t> unopened_;  // what OpenSSL has not taken of them.
  std::vector<uint8_t> sealed_;         // Records that are to be sent,
  std::vector<uint8_t> sending_;        // and those being sent.
  bool sends_ = false;
  std::vector<Done> waiting_;   // For what was sealed while that is sent.
  asio::error_code broken_;     // Told once the bytes before it have been read.
  std::vector<uint8_t> clear_;  // A record's worth of what is written.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TLS_STREAM_H_
