// The data plane with certificates, and who tries to get into it without the
// right ones: refused, told once in the log, and an exchange that runs goes on.
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "agent/exchange/tcp/test_tls_transports.h"
#include "asio/write.hpp"
#include "base/clock.h"
#include "base/test_descriptors.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using ::testing::HasSubstr;

class TlsTransportTest : public TlsTransports {
 protected:
  std::vector<asio::ip::tcp::socket> DialMany(
      int count, const std::string& from = "127.0.0.1") {
    std::vector<asio::ip::tcp::socket> idle;
    for (int i = 0; i < count; ++i) idle.push_back(DialRaw(*b_, from));
    return idle;
  }
  uint64_t Refused(base::Refusal refusal) const {
    return b_->transport->refused().of(refusal);
  }
  // A client of b with a certificate that it takes, and no word after that.
  std::unique_ptr<AsioTlsStream> ShakeHands() {
    const auto context = base::MakeTlsContext(Issue("a"), base::TlsNames());
    EXPECT_TRUE(context.ok());
    auto stream =
        std::make_unique<AsioTlsStream>(DialRaw(*b_), SSL_new(context->get()));
    std::optional<asio::error_code> result;
    stream->async_handshake(
        AsioTlsStream::client,
        [&](const asio::error_code& error) { result = error; });
    EXPECT_TRUE(RunUntil([&] { return result.has_value(); }));
    EXPECT_FALSE(*result);
    return stream;
  }
  // What a stranger sends in plain text is refused, and said in these words.
  void ExpectPlainTextRefused(const std::string& bytes,
                              const std::string& words) {
    for (int tries = 0; tries < 2; ++tries) {
      auto raw = DialRaw(*b_);
      asio::write(raw, asio::buffer(bytes));
      EXPECT_TRUE(RunUntilClosed(raw));
    }
    EXPECT_EQ(log_.Count("refused"), 1) << log_.text();
    EXPECT_THAT(log_.text(), HasSubstr(words));
    ExpectExchangeGoesOn();
  }
};

TEST_F(TlsTransportTest, FramesOfAllSizesArriveIntactAndInOrderBothWays) {
  StartExchange();
  // Mostly small: sanitizers take long for each large one.
  const size_t sizes[] = {
      0, 1, 8192, 100, 0, 8191, 1, 8192, 0, 1, protocol::kMaxFramePayload};
  const size_t count = std::size(sizes);
  for (uint16_t i = 0; i < 200; ++i) {
    auto data = std::make_shared<std::vector<uint8_t>>(sizes[i % count],
                                                       static_cast<uint8_t>(i));
    protocol::FrameHeader header;
    header.frame = i;
    header.leg = protocol::Leg::kUp;
    b_->transport->SendData("c", header, {data, absl::MakeConstSpan(*data)});
    c_->transport->SendData("b", header, {data, absl::MakeConstSpan(*data)});
  }
  ASSERT_TRUE(RunUntil([&] {
    return b_->events.frames.size() == 200 && c_->events.frames.size() == 200;
  }));
  for (const Node* node : {b_.get(), c_.get()}) {
    for (uint16_t i = 0; i < 200; ++i) {
      const Frame& frame = node->events.frames[i];
      EXPECT_EQ(frame.header.frame, i);
      EXPECT_EQ(frame.payload.bytes,
                absl::MakeConstSpan(std::vector<uint8_t>(
                    sizes[i % count], static_cast<uint8_t>(i))));
    }
  }
}

TEST_F(TlsTransportTest, LostConnectionIsDialledAgain) {
  StartExchange();
  c_->transport->ClosePeer("b", "a test");
  ASSERT_TRUE(RunUntil([&] { return b_->events.connected.size() == 2; }));
  EXPECT_TRUE(RunUntil([&] { return c_->events.connected.size() == 2; }));
}

TEST_F(TlsTransportTest, sec_PlainTcpIsRefused) {
  StartExchange();
  ExpectPlainTextRefused(std::string(64, 'x'), "wrong version number");
}

TEST_F(TlsTransportTest, sec_PlainHttp2IsRefused) {
  StartExchange();
  ExpectPlainTextRefused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "refused");
}

TEST_F(TlsTransportTest, sec_limits_HandshakeSeconds) {
  EXPECT_EQ(Connection::Limits().handshake,
            absl::Seconds(protocol::kHandshakeSeconds));
  limits_.handshake = absl::Milliseconds(200);
  StartExchange();
  auto raw = DialRaw(*b_);
  EXPECT_TRUE(RunUntilClosed(raw));
  EXPECT_THAT(log_.text(), HasSubstr("no handshake with 127.0.0.1"));
  ExpectExchangeGoesOn();
}

TEST_F(TlsTransportTest, sec_NoCertificateIsRefused) {
  StartExchange();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()),
                                         SSL_CTX_free);
  ExpectClientRefused(context.get(), "peer did not return a certificate");
}

TEST_F(TlsTransportTest, sec_dataplane_downgrade) {
  StartExchange();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()),
                                         SSL_CTX_free);
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  AsioTlsStream stream(DialRaw(*b_), SSL_new(context.get()));
  std::optional<asio::error_code> result;
  stream.async_handshake(
      AsioTlsStream::client,
      [&](const asio::error_code& error) { result = error; });
  ASSERT_TRUE(RunUntil([&] { return result.has_value(); }));
  EXPECT_TRUE(*result);
  EXPECT_THAT(log_.text(), HasSubstr("unsupported protocol"));
  ExpectExchangeGoesOn();
}

TEST_F(TlsTransportTest, sec_join_wrong_ca) {
  StartExchange();
  const base::TestCa other(base::MakeTestFolder("-other"));
  ExpectDiallerRefused(TakesBoth(other.Issue("a", UriOf("a")), Issue("a")),
                       "the job keys (or CAs) differ");
}

TEST_F(TlsTransportTest, sec_join_expired) {
  StartExchange();
  const base::TlsFiles files =
      ca_.Issue("a", base::TestCa::Leaf{{UriOf("a")}, -7200, -3600});
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()),
                                         SSL_CTX_free);
  ASSERT_EQ(
      SSL_CTX_use_certificate_chain_file(context.get(), files.cert.c_str()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(),
                                        SSL_FILETYPE_PEM),
            1);
  ExpectClientRefused(context.get(), "certificate has expired");
}

TEST_F(TlsTransportTest, sec_AnotherAgentsNameInTheHelloIsRefused) {
  StartExchange();
  ExpectDiallerRefused(
      ca_.Issue("thief", UriOf("thief")),
      "calls itself agent a, but its certificate is of agent thief");
}

TEST_F(TlsTransportTest, sec_OperatorIsNoPeer) {
  StartExchange();
  ExpectDiallerRefused(ca_.Issue("operator", "spiffe://pactrain/operator"),
                       "is no agent: its certificate is of "
                       "spiffe://pactrain/operator");
}

TEST_F(TlsTransportTest, sec_CertificateWithoutAUriIsNobody) {
  StartExchange();
  ExpectDiallerRefused(ca_.Issue("none", base::TestCa::Leaf{}),
                       "has 0 URIs among its alternative names");
}

TEST_F(TlsTransportTest, sec_WrongPeerWhereAnAgentIsDialledIsRefused) {
  StartExchange();
  // "a" dials what the generation says is d's address, and meets c.
  const auto a = MakeNode("a");
  Transport::Peer d = c_->AsPeer();
  d.agent = "d";
  a->transport->SetPeers({d});
  EXPECT_TRUE(RunUntil([&] {
    return log_.Has("should be agent d, but its certificate is of agent c");
  })) << log_.text();
  EXPECT_TRUE(a->events.connected.empty());
  ExpectExchangeGoesOn();
}

TEST_F(TlsTransportTest, sec_PortScannerIsNoHarm) {
  StartExchange();
  for (int i = 0; i < 100; ++i) {
    auto raw = DialRaw(*b_);
    // Nothing, or bytes that are no handshake.
    if (i % 2 == 0) {
      asio::write(raw, asio::buffer(std::string(1 + i, static_cast<char>(i))));
    }
  }
  EXPECT_TRUE(
      RunUntil([&] { return Refused(base::Refusal::kHandshake) == 100; }));
  ExpectExchangeGoesOn();
}

TEST_F(TlsTransportTest, sec_slowloris) {
  limits_.handshake = absl::Milliseconds(300);
  StartExchange();
  auto raw = DialRaw(*b_);
  // A ClientHello of 16 KiB, a byte in five milliseconds after its first ones.
  const std::string begin("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03", 11);
  asio::write(raw, asio::buffer(begin));
  size_t sent = 0;
  absl::Duration next;
  asio::error_code error;
  EXPECT_TRUE(RunUntil([&] {
    if (error || base::MonotonicNow() < next) return !!error;
    next = base::MonotonicNow() + absl::Milliseconds(5);
    asio::write(raw, asio::buffer("", 1), error);
    ++sent;
    return !!error;
  }));
  EXPECT_GT(sent, 0u);
  EXPECT_THAT(log_.text(), HasSubstr("no handshake with 127.0.0.1"));
  ExpectExchangeGoesOn();
}

TEST_F(TlsTransportTest, sec_conn_flood) {
  limits_.handshake = absl::Seconds(2);
  StartExchange();
  {
    const auto idle = DialMany(1000);
    EXPECT_TRUE(RunUntil([&] {
      return Refused(base::Refusal::kUnproven) +
                 Refused(base::Refusal::kHandshake) ==
             1000;
    }));
  }
  EXPECT_GT(Refused(base::Refusal::kUnproven), 0u);
  EXPECT_EQ(log_.Count("whose sender is not known yet"), 1) << log_.text();
  // A peer that was not there yet gets in.
  const auto a = MakeNode("a");
  b_->transport->SetPeers({a->AsPeer(), c_->AsPeer()});
  a->transport->SetPeers({b_->AsPeer()});
  EXPECT_TRUE(RunUntil([&] { return b_->transport->IsConnected("a"); }));
  ExpectExchangeGoesOn();
}

TEST_F(TlsTransportTest, sec_limits_UnprovenConnections) {
  StartExchange();
  auto idle = DialMany(protocol::kMaxPeerHandshakes);
  ExpectExchangeGoesOn();
  EXPECT_EQ(Refused(base::Refusal::kUnproven), 0u);
  const auto last = DialRaw(*b_);
  EXPECT_TRUE(RunUntilClosed(idle[0]));
  EXPECT_EQ(Refused(base::Refusal::kUnproven), 1u);
  ExpectExchangeGoesOn();
}

TEST_F(TlsTransportTest, sec_limits_ConnectionsPerSource) {
  constexpr int kLimit = protocol::kMaxConnectionsPerSource;
  EXPECT_EQ(options_.inbound.open.per_source, kLimit);
  EXPECT_EQ(options_.inbound.open.from_loopback,
            protocol::kMaxConnectionsFromLoopback);
  // Who comes from loopback here stands for any source.
  options_.inbound.open = {
      .total = 100, .per_source = 1, .from_loopback = kLimit};
  // None comes from a peer: "a" would dial it.
  StartExchange();
  std::vector<std::unique_ptr<AsioTlsStream>> proven;
  for (int i = 0; i < kLimit; ++i) proven.push_back(ShakeHands());
  EXPECT_EQ(Refused(base::Refusal::kSource), 0u);
  {
    auto last = DialRaw(*b_);
    EXPECT_TRUE(RunUntilClosed(last));
  }
  EXPECT_EQ(Refused(base::Refusal::kSource), 1u);
  EXPECT_EQ(Refused(base::Refusal::kHandshake), 0u);
  // The end of one makes room for another.
  proven.pop_back();
  const auto a = MakeNode("a");
  b_->transport->SetPeers({a->AsPeer(), c_->AsPeer()});
  a->transport->SetPeers({b_->AsPeer()});
  EXPECT_TRUE(RunUntil([&] { return b_->transport->IsConnected("a"); }));
  ExpectExchangeGoesOn();
}

TEST_F(TlsTransportTest, sec_limits_ConnectionsOfAll) {
  constexpr int kLimit = protocol::kMaxPeerConnections;
  options_.inbound.strangers = 2 * kLimit;  // Or these are bounded earlier.
  b_ = MakeNode("b");
  auto idle = DialMany(kLimit / 2);
  for (auto& more : DialMany(kLimit / 2, "127.0.0.2")) {
    idle.push_back(std::move(more));
  }
  EXPECT_TRUE(RunUntil([&] { return io_.poll_one() == 0; }));
  EXPECT_EQ(Refused(base::Refusal::kTotal), 0u);
  const auto last = DialRaw(*b_, "127.0.0.3");
  EXPECT_TRUE(RunUntilClosed(idle[0]));
  EXPECT_EQ(Refused(base::Refusal::kTotal), 1u);
  EXPECT_EQ(Refused(base::Refusal::kSource), 0u);
  EXPECT_EQ(Refused(base::Refusal::kHandshake), 0u);
}

TEST_F(TlsTransportTest, sec_limits_ConnectionsFromLoopback) {
  constexpr int kLimit = protocol::kMaxConnectionsFromLoopback;
  options_.inbound.strangers = 2 * kLimit;
  options_.inbound.open.total = 2 * kLimit;
  b_ = MakeNode("b");
  auto idle = DialMany(kLimit);
  EXPECT_TRUE(RunUntil([&] { return io_.poll_one() == 0; }));
  EXPECT_EQ(Refused(base::Refusal::kSource), 0u);
  const auto last = DialRaw(*b_);
  EXPECT_TRUE(RunUntilClosed(idle[0]));
  EXPECT_EQ(Refused(base::Refusal::kSource), 1u);
  EXPECT_EQ(Refused(base::Refusal::kHandshake), 0u);
}

TEST_F(TlsTransportTest, sec_NoDescriptorsLeftIsSurvived) {
  StartExchange();
  std::optional<base::OneDescriptorLeft> scarce(std::in_place);
  auto raw = DialRaw(*b_);  // It takes the last one.
  EXPECT_TRUE(
      RunUntil([&] { return Refused(base::Refusal::kDescriptors) > 0; }));
  // It pauses: a turn later it has not tried a thousand times.
  for (int turn = 0; turn < 1000; ++turn) io_.poll_one();
  EXPECT_LT(Refused(base::Refusal::kDescriptors), 100u);
  scarce.reset();
  asio::write(raw, asio::buffer(std::string(64, 'x')));
  EXPECT_TRUE(RunUntilClosed(raw));
  ExpectExchangeGoesOn();
}

// No connection outlives the certificates that it was made with.
TEST_F(TlsTransportTest, sec_cert_expired_midrun) {
  b_ = MakeNode("b");
  c_ = MakeNode("c", ca_.Issue("c", base::TestCa::Leaf{.uris = {UriOf("c")},
                                                       .valid_to_s = 5}));
  Introduce(*b_, *c_);
  ExpectExchangeGoesOn();
  ASSERT_TRUE(RunUntil([&] { return !b_->events.disconnected.empty(); }));
  EXPECT_TRUE(RunUntil([&] { return log_.Has("certificate has expired"); }))
      << log_.text();
  EXPECT_FALSE(b_->transport->IsConnected("c"));
  ca_.Issue("c", UriOf("c"));
  EXPECT_TRUE(RunUntil([&] { return b_->events.connected.size() == 2; }));
}

TEST_F(TlsTransportTest, sec_ca_expired_midrun) {
  b_ = MakeNode("b");
  c_ = MakeNode("c", ca_.Issue("c", base::TestCa::Leaf{.uris = {UriOf("c")},
                                                       .ca_valid_to_s = 5}));
  Introduce(*b_, *c_);
  ExpectExchangeGoesOn();
  ASSERT_TRUE(RunUntil([&] {
    return !b_->events.disconnected.empty() && !c_->events.disconnected.empty();
  }));
  EXPECT_THAT(c_->events.disconnected[0].message(),
              HasSubstr("the certificate of this agent, or its CA's"));
  EXPECT_THAT(b_->events.disconnected[0].message(),
              HasSubstr("the certificate of agent c, or its CA's"));
}

TEST_F(TlsTransportTest, WithANewCertificateConnectionsAreMadeAnewInTime) {
  b_ = MakeNode("b");
  c_ = MakeNode("c", ca_.Issue("c", base::TestCa::Leaf{.uris = {UriOf("c")},
                                                       .valid_to_s = 20}));
  const absl::Duration end = base::MonotonicNow() + absl::Seconds(20);
  Introduce(*b_, *c_);
  ca_.Issue("c", UriOf("c"));
  ASSERT_TRUE(RunUntil([&] { return c_->transport->IsRenewalDue(); }));
  EXPECT_LT(base::MonotonicNow(), end);
  EXPECT_TRUE(b_->events.disconnected.empty());  // Until there is time for it.
  EXPECT_FALSE(b_->transport->IsRenewalDue());
  ASSERT_TRUE(RunUntil([&] { return c_->transport->IsRenewalLate(); }));
  c_->transport->Renew();
  EXPECT_FALSE(c_->transport->IsRenewalDue());
  EXPECT_FALSE(c_->transport->IsRenewalLate());
  ASSERT_TRUE(RunUntil([&] { return b_->events.connected.size() == 2; }));
  ASSERT_TRUE(RunUntil([&] { return base::MonotonicNow() > end; }));
  EXPECT_FALSE(c_->transport->IsRenewalDue());
  EXPECT_EQ(b_->events.disconnected.size(), 1u);
  EXPECT_EQ(log_.Count("refused"), 0) << log_.text();
}

TEST_F(TlsTransportTest, sec_cert_rotate_midstep) {
  StartExchange();
  // A certificate that is taken over: c now says that it is somebody else.
  ca_.Issue("c", UriOf("changed"));
  ExpectExchangeGoesOn();
  c_->transport->ClosePeer("b", "a test");
  EXPECT_TRUE(RunUntil([&] {
    return log_.Has(
        "should be agent c, but its certificate is of agent changed");
  })) << log_.text();
  ca_.Issue("c", UriOf("c"));
  EXPECT_TRUE(RunUntil([&] { return b_->events.connected.size() == 2; }));
}

// Also of a certificate that nobody has asked for since it was written.
TEST_F(TlsTransportTest, sec_cert_life_alarm_WithoutANewConnection) {
  StartExchange();
  const auto left = [&] {
    return b_->transport->certificates()->own.until - absl::Now();
  };
  EXPECT_GT(left(), absl::Minutes(50));
  ca_.Issue("b", base::TestCa::Leaf{{UriOf("b")}, -3600, 600});
  EXPECT_TRUE(RunUntil([&] {
    return log_.Has("less than a fifth of its life");
  })) << log_.text();
  EXPECT_LT(left(), absl::Minutes(11));
  ExpectExchangeGoesOn();
}

}  // namespace
}  // namespace pactrain::agent
