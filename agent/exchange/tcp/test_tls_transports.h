// Transports with certificates, and who must not get into their exchange, for
// tests.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_TEST_TLS_TRANSPORTS_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_TEST_TLS_TRANSPORTS_H_

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "agent/exchange/tcp/test_transports.h"
#include "asio/ssl/stream.hpp"
#include "base/log_capture.h"
#include "base/test_folder.h"
#include "base/tls/test_certs.h"
#include "gmock/gmock.h"

namespace pactrain::agent {

using AsioTlsStream = asio::ssl::stream<asio::ip::tcp::socket>;

inline std::string UriOf(const std::string& agent) {
  return "spiffe://pactrain/agent/" + agent;
}

// Files of `own`, which take others by `other` as well.
inline base::TlsFiles TakesBoth(base::TlsFiles own,
                                const base::TlsFiles& other) {
  const std::string path = base::MakeTestFolder("-both") + "/both.pem";
  std::ofstream(path) << std::ifstream(own.ca).rdbuf()
                      << std::ifstream(other.ca).rdbuf();
  own.ca = path;
  return own;
}

// Agents with certificates of one CA; b_ and c_ are those that strangers try.
class TlsTransports : public TestTransports {
 protected:
  std::unique_ptr<Node> MakeNode(const std::string& name,
                                 const base::TlsFiles& files) {
    Transport::Options options = options_;
    options.tls = files;
    options.second_dial = absl::Hours(24);  // dial_test has that.
    return TestTransports::MakeNode(name, options);
  }
  std::unique_ptr<Node> MakeNode(const std::string& name) {
    return MakeNode(name, Issue(name));
  }
  virtual base::TlsFiles Issue(const std::string& agent) const {
    return ca_.Issue(agent, UriOf(agent));
  }
  // b and c, connected: the exchange that must go on.
  void StartExchange() {
    b_ = MakeNode("b");
    c_ = MakeNode("c");
    Introduce(*b_, *c_);
  }
  void ExpectExchangeGoesOn() {
    const size_t before = b_->events.frames.size();
    auto data = std::make_shared<std::vector<uint8_t>>(8192, 7);
    protocol::FrameHeader header;
    header.leg = protocol::Leg::kUp;
    c_->transport->SendData("b", header, {data, absl::MakeConstSpan(*data)});
    EXPECT_TRUE(
        RunUntil([&] { return b_->events.frames.size() == before + 1; }));
    EXPECT_TRUE(b_->events.disconnected.empty());
  }
  // An agent "a" with these files dials b, which expects it, and gets nowhere.
  void ExpectDiallerRefused(const base::TlsFiles& files,
                            const std::string& words) {
    const auto a = MakeNode("a", files);
    b_->transport->SetPeers({a->AsPeer(), c_->AsPeer()});
    a->transport->SetPeers({b_->AsPeer()});
    EXPECT_TRUE(RunUntil([&] { return log_.Has(words); })) << log_.text();
    EXPECT_TRUE(a->events.connected.empty());
    EXPECT_FALSE(b_->transport->IsConnected("a"));
    ExpectExchangeGoesOn();
    EXPECT_EQ(log_.Count("data connection from 127.0.0.1"), 1) << log_.text();
    a->transport->SetPeers({});
  }
  // Somebody who shakes hands with b by this context.
  void ExpectClientRefused(SSL_CTX* context, const std::string& words) {
    AsioTlsStream stream(DialRaw(*b_), SSL_new(context));
    bool ended = false;
    char byte[1];
    stream.async_handshake(AsioTlsStream::client, [&](const asio::error_code&) {
      // In TLS 1.3 the refusal comes with the first read.
      stream.async_read_some(
          asio::buffer(byte),
          [&](const asio::error_code& error, size_t) { ended = !!error; });
    });
    EXPECT_TRUE(RunUntil([&] { return ended; }));
    EXPECT_THAT(log_.text(), ::testing::HasSubstr(words));
    ExpectExchangeGoesOn();
  }

  base::LogCapture log_;
  Transport::Options options_;
  const base::TestCa ca_{base::MakeTestFolder()};
  std::unique_ptr<Node> b_, c_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TEST_TLS_TRANSPORTS_H_
