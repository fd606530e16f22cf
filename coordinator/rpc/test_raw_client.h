// Strangers at a coordinator's port, for tests: sockets, TLS and HTTP/2 written
// by hand, to send what no gRPC client would. Waits at most 20 s for anything.
#ifndef PACTRAIN_COORDINATOR_RPC_TEST_RAW_CLIENT_H_
#define PACTRAIN_COORDINATOR_RPC_TEST_RAW_CLIENT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/tls/tls_files.h"

namespace pactrain::coordinator {

class RawClient {
 public:
  // Connects from the loopback address 127.0.0.`host`.
  explicit RawClient(uint16_t port, int host = 2)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    PT_CHECK(fd_ >= 0);
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL.
    const timeval patience = {20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    const sockaddr_in from = Loopback(host, 0);
    PT_CHECK(bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof from) ==
             0);
    const sockaddr_in to = Loopback(1, port);
    connected_ =
        connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  }
  ~RawClient() {
    ssl_.reset();
    if (fd_ >= 0) close(fd_);
  }
  RawClient(RawClient&& other)
      : fd_(std::exchange(other.fd_, -1)),
        connected_(other.connected_),
        ssl_(std::move(other.ssl_)) {}

  bool connected() const { return connected_; }

  // TLS, with a certificate or without. Whether the server has refused is known
  // from the next read only.
  bool ShakeHands(const base::TlsFiles& files = {}) {
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(
        SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    if (files.given()) {
      PT_CHECK(SSL_CTX_use_certificate_chain_file(context.get(),
                                                  files.cert.c_str()) == 1);
      PT_CHECK(SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(),
                                           SSL_FILETYPE_PEM) == 1);
    }
    const unsigned char kProtocols[] = "\x02h2";
    SSL_CTX_set_alpn_protos(context.get(), kProtocols, 3);
    ssl_.reset(SSL_new(context.get()));
    SSL_set_fd(ssl_.get(), fd_);
    return SSL_connect(ssl_.get()) == 1;
  }

  // KeyUpdate. False: the other side has hung up.
  bool UpdateKeys() {
    return SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1 &&
           SSL_do_handshake(ssl_.get()) == 1;
  }
  // False: the other side has hung up.
  bool Send(const std::string& bytes) {
    if (ssl_ != nullptr) {
      return SSL_write(ssl_.get(), bytes.data(),
                       static_cast<int>(bytes.size())) > 0;
    }
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // What comes next; empty: the connection is over.
  std::string Receive() {
    char bytes[16384];
    errno = 0;
    const int got = ssl_ != nullptr
                        ? SSL_read(ssl_.get(), bytes, sizeof bytes)
                        : static_cast<int>(recv(fd_, bytes, sizeof bytes, 0));
    if (got > 0) return std::string(bytes, static_cast<size_t>(got));
    PT_CHECK(errno != EAGAIN);  // It is open still and nothing comes.
    return "";
  }
  // All that comes until the connection is over.
  std::string ReceiveAll() {
    std::string all;
    while (true) {
      const std::string more = Receive();
      if (more.empty()) return all;
      all += more;
    }
  }
  // Whether the other side hangs up within a tenth of a second.
  bool IsOver() {
    pollfd wait = {fd_, POLLIN, 0};
    if (poll(&wait, 1, 100) <= 0) return false;
    char byte;
    const ssize_t got = recv(fd_, &byte, 1, MSG_PEEK);
    return got <= 0;
  }

 private:
  static sockaddr_in Loopback(int host, uint16_t port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl((127u << 24) | static_cast<uint32_t>(host));
    return address;
  }
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  int fd_;
  bool connected_ = false;
  std::unique_ptr<SSL, Free> ssl_;
};

// HTTP/2 and HPACK by hand.
namespace http2 {

enum Type : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6
};
inline constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;

inline std::string Frame(Type type, uint8_t flags, uint32_t stream,
                         const std::string& payload) {
  const uint32_t size = static_cast<uint32_t>(payload.size());
  std::string frame;
  for (int shift : {16, 8, 0})
    frame.push_back(static_cast<char>(size >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (int shift : {24, 16, 8, 0}) {
    frame.push_back(static_cast<char>(stream >> shift));
  }
  return frame + payload;
}

// A number in the low `bits` of a first byte, and more bytes if need be.
inline std::string Number(size_t value, int bits) {
  const size_t most = (size_t{1} << bits) - 1;
  if (value < most) return std::string(1, static_cast<char>(value));
  std::string bytes(1, static_cast<char>(most));
  for (value -= most; value >= 128; value >>= 7) {
    bytes.push_back(static_cast<char>(128 | (value & 127)));
  }
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

// A literal field that enters no table.
inline std::string Field(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + Number(name.size(), 7) + name +
         Number(value.size(), 7) + value;
}

// The fields of a proper call of this method, as names with values and as
// bytes.
inline std::vector<std::pair<std::string, std::string>> CallFields(
    const std::string& path) {
  return {{":method", "POST"}, {":scheme", "http"},
          {":path", path},     {":authority", "x"},
          {"te", "trailers"},  {"content-type", "application/grpc"}};
}
inline std::string Call(const std::string& path) {
  std::string bytes;
  for (const auto& [name, value] : CallFields(path))
    bytes += Field(name, value);
  return bytes;
}

// What a client says first.
inline std::string Preface() {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "") +
         Frame(kSettings, kAck, 0, "");
}

// Whether a frame of this type with these flags is in `bytes`, which begin with
// a frame; its payload in `payload`.
inline bool Find(const std::string& bytes, Type type, uint8_t flags,
                 std::string* payload = nullptr) {
  for (size_t at = 0; at + 9 <= bytes.size();) {
    const auto byte = [&](size_t i) {
      return static_cast<uint8_t>(bytes[at + i]);
    };
    const size_t size = size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2);
    if (byte(3) == type && byte(4) == flags) {
      if (payload != nullptr) *payload = bytes.substr(at + 9, size);
      return true;
    }
    at += 9 + size;
  }
  return false;
}

}  // namespace http2
}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_TEST_RAW_CLIENT_H_
