#include "agent/exchange/tcp/transport.h"

#include <thread>
#include <utility>

#include "agent/exchange/tcp/test_transports.h"
#include "asio/write.hpp"
#include "base/status_matchers.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using protocol::Abort;
using protocol::FrameHeader;
using protocol::GroupControl;
using protocol::Leg;
using protocol::PeerHello;

class TransportTest : public TestTransports {
 protected:
  std::unique_ptr<Node> MakeNode(const std::string& name,
                                 EgressLimits egress = {}) {
    Transport::Options options;
    options.egress = std::move(egress);
    options.second_dial = absl::Hours(24);  // dial_test has that.
    return TestTransports::MakeNode(name, options);
  }

  static Payload MakePayload(size_t bytes, uint8_t seed) {
    auto data = std::make_shared<std::vector<uint8_t>>(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      (*data)[i] = static_cast<uint8_t>(seed + i);
    }
    return {data, absl::MakeConstSpan(*data)};
  }
  static FrameHeader DataHeader(uint16_t frame) {
    FrameHeader header;
    header.step = 7;
    header.frame = frame;
    header.leg = Leg::kUp;
    return header;
  }
  static GroupControl AbortFor(uint64_t step) {
    Abort abort;
    abort.step = step;
    return {{"job", 0}, abort};
  }

  static void SendRaw(asio::ip::tcp::socket& socket, const OutFrame& frame) {
    asio::write(socket, asio::buffer(frame.header));
    asio::write(socket, asio::buffer(frame.payload.bytes.data(),
                                     frame.payload.bytes.size()));
  }
  static PeerHello HelloFrom(const Node& from, const Node& to) {
    return {from.name, from.incarnation, "", to.name};
  }
};

TEST_F(TransportTest, FramesArriveIntactAndInOrderBothWays) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Introduce(*a, *b);
  const size_t sizes[] = {0, 1, 8192, protocol::kMaxFramePayload};
  for (uint16_t i = 0; i < 4; ++i) {
    a->transport->SendData("b", DataHeader(i), MakePayload(sizes[i], i));
    b->transport->SendData("a", DataHeader(i), MakePayload(sizes[i], i));
  }
  ASSERT_TRUE(RunUntil([&] {
    return a->events.frames.size() == 4 && b->events.frames.size() == 4;
  }));
  for (const Recorder* events : {&a->events, &b->events}) {
    for (uint16_t i = 0; i < 4; ++i) {
      const Frame& frame = events->frames[i];
      EXPECT_EQ(frame.header.frame, i);
      EXPECT_EQ(frame.header.step, 7u);
      EXPECT_EQ(frame.payload.bytes, MakePayload(sizes[i], i).bytes);
    }
  }
}

TEST_F(TransportTest, WhatIsQueuedWhenItGoesDoesNothing) {
  Recorder events;
  Transport::Options options;
  options.agent = "a";
  options.heartbeat = absl::ZeroDuration();
  auto transport = Transport::Start(io_, options, &events);
  ASSERT_OK(transport.status());
  // Its timer has run out when this is called, and its handler comes after it.
  asio::post(io_, [&] { transport->reset(); });
  io_.poll();  // AddressSanitizer sees one that reads what is gone.
}

TEST_F(TransportTest, ControlOvertakesQueuedData) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Introduce(*a, *b);
  for (uint16_t i = 0; i < 2000; ++i) {
    a->transport->SendData("b", DataHeader(i), MakePayload(8192, 1));
  }
  a->transport->SendControl("b", AbortFor(9));
  ASSERT_TRUE(RunUntil([&] { return b->events.order.size() == 2001; }));
  EXPECT_LT(b->events.order.find('c'), 1000u);
  EXPECT_EQ(b->events.controls[0], AbortFor(9));
}

TEST_F(TransportTest, DialWaitsUntilTheOtherSideKnowsThePeer) {
  auto a = MakeNode("a"), b = MakeNode("b");
  a->transport->SetPeers({b->AsPeer()});
  auto raw = DialRaw(*b);  // The accept queue moves while b knows nobody.
  ASSERT_TRUE(RunUntil([&] { return io_.poll_one() == 0; }));
  EXPECT_TRUE(a->events.connected.empty());
  b->transport->SetPeers({a->AsPeer()});
  EXPECT_TRUE(RunUntil([&] { return !a->events.connected.empty(); }));
}

TEST_F(TransportTest, LostConnectionIsToldAndDialledAgain) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Introduce(*a, *b);
  b->transport->SetPeers({});  // b hangs up, then takes a back.
  ASSERT_TRUE(RunUntil([&] { return !a->events.disconnected.empty(); }));
  b->transport->SetPeers({a->AsPeer()});
  EXPECT_TRUE(RunUntil([&] { return a->events.connected.size() == 2; }));
}

TEST_F(TransportTest, BadMagicClosesOnlyThatConnection) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Introduce(*a, *b);
  auto raw = DialRaw(*b);
  asio::write(raw, asio::buffer(std::string(64, 'x')));
  EXPECT_TRUE(RunUntilClosed(raw));
  EXPECT_TRUE(b->transport->IsConnected("a"));
}

TEST_F(TransportTest, BadPayloadChecksumIsDataLoss) {
  auto a = MakeNode("a"), b = MakeNode("b");
  b->transport->SetPeers({a->AsPeer()});
  auto raw = DialRaw(*b);
  SendRaw(raw, OutFrame(HelloFrom(*a, *b)));
  OutFrame damaged(DataHeader(1), MakePayload(100, 1));
  damaged.payload = MakePayload(100, 2);
  SendRaw(raw, damaged);
  ASSERT_TRUE(RunUntilClosed(raw));
  ASSERT_TRUE(RunUntil([&] { return !b->events.disconnected.empty(); }));
  EXPECT_EQ(b->events.disconnected[0].code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(b->events.frames.empty());
}

// One above is refused from its header alone.
TEST_F(TransportTest, sec_limits_FrameSize) {
  auto a = MakeNode("a"), b = MakeNode("b");
  b->transport->SetPeers({a->AsPeer()});
  auto raw = DialRaw(*b);
  SendRaw(raw, OutFrame(HelloFrom(*a, *b)));
  const OutFrame largest(DataHeader(0),
                         MakePayload(protocol::kMaxFramePayload, 1));
  std::thread sender([&] { SendRaw(raw, largest); });
  EXPECT_TRUE(RunUntil([&] { return b->events.frames.size() == 1; }));
  sender.join();
  FrameHeader header = DataHeader(1);
  header.bytes = protocol::kMaxFramePayload + 1;
  uint8_t bytes[protocol::kHeaderBytes];
  protocol::EncodeHeader(header, bytes);
  asio::write(raw, asio::buffer(bytes));
  EXPECT_TRUE(RunUntilClosed(raw));
  ASSERT_TRUE(RunUntil([&] { return !b->events.disconnected.empty(); }));
  EXPECT_EQ(b->events.disconnected[0].code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(TransportTest, HelloForAnotherAgentOrClusterIsRefused) {
  auto a = MakeNode("a"), b = MakeNode("b");
  b->transport->SetClusterId("one");
  b->transport->SetPeers({a->AsPeer()});
  PeerHello wrong_agent = HelloFrom(*a, *b);
  wrong_agent.expected_agent = "c";
  PeerHello wrong_cluster = HelloFrom(*a, *b);
  wrong_cluster.cluster_id = "two";
  for (const PeerHello& hello : {wrong_agent, wrong_cluster}) {
    auto raw = DialRaw(*b);
    SendRaw(raw, OutFrame(hello));
    EXPECT_TRUE(RunUntilClosed(raw));
  }
  EXPECT_TRUE(b->events.connected.empty());
}

TEST_F(TransportTest, DataBeforeTheHelloIsRefused) {
  auto b = MakeNode("b");
  auto raw = DialRaw(*b);
  SendRaw(raw, OutFrame(DataHeader(1), MakePayload(10, 1)));
  EXPECT_TRUE(RunUntilClosed(raw));
}

TEST_F(TransportTest, SilentPeerIsDropped) {
  limits_.suspect = absl::Milliseconds(100);
  auto a = MakeNode("a"), b = MakeNode("b");
  b->transport->SetPeers({a->AsPeer()});
  auto raw = DialRaw(*b);
  SendRaw(raw, OutFrame(HelloFrom(*a, *b)));
  ASSERT_TRUE(RunUntil([&] { return !b->events.disconnected.empty(); }));
  EXPECT_THAT(b->events.disconnected[0],
              base::StatusIs(absl::StatusCode::kDeadlineExceeded,
                             ::testing::HasSubstr("nothing came from")));
}

TEST_F(TransportTest, HandshakeIsBounded) {
  limits_.handshake = absl::Milliseconds(20);
  auto b = MakeNode("b");
  auto raw = DialRaw(*b);
  EXPECT_TRUE(RunUntilClosed(raw));
}

TEST_F(TransportTest, PeerThatLeavesControlUnreadIsDropped) {
  limits_.max_control_bytes = 1 << 20;
  auto a = MakeNode("a"), b = MakeNode("b");
  b->transport->SetPeers({a->AsPeer()});
  auto raw = DialRaw(*b);
  SendRaw(raw, OutFrame(HelloFrom(*a, *b)));
  ASSERT_TRUE(RunUntil([&] { return b->transport->IsConnected("a"); }));
  for (int i = 0; i < 1000000 && b->transport->IsConnected("a"); ++i) {
    b->transport->SendControl("a", AbortFor(1));
  }
  ASSERT_TRUE(RunUntil([&] { return !b->events.disconnected.empty(); }));
  EXPECT_EQ(b->events.disconnected[0].code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(TransportTest, EgressLimitHoldsForAllConnectionsToASite) {
  constexpr double kRate = 4e6;
  auto a = MakeNode("a", EgressLimits::Create({{"eu", kRate}}, "").value());
  auto b = MakeNode("b"), c = MakeNode("c");
  b->site = c->site = "eu";
  a->transport->SetPeers({b->AsPeer(), c->AsPeer()});
  b->transport->SetPeers({a->AsPeer()});
  c->transport->SetPeers({a->AsPeer()});
  ASSERT_TRUE(RunUntil([&] { return a->events.connected.size() == 2; }));
  const absl::Duration start = base::MonotonicNow();
  for (uint16_t i = 0; i < 60; ++i) {
    a->transport->SendData("b", DataHeader(i), MakePayload(8192, 1));
    a->transport->SendData("c", DataHeader(i), MakePayload(8192, 1));
  }
  // Whatever the machine does, no more may ever have come than rate x time, a
  // burst, and a batch of either connection.
  ASSERT_TRUE(RunUntil([&] {
    const size_t frames = b->events.frames.size() + c->events.frames.size();
    const double seconds = absl::ToDoubleSeconds(base::MonotonicNow() - start);
    EXPECT_LE(static_cast<double>(frames) * 8256,
              kRate * seconds + EgressLimits::kBurstBytes + 2 * 24576);
    return frames == 120;
  }));
}

TEST_F(TransportTest, BytesAreCountedPerSiteWithHeaders) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Introduce(*a, *b);
  const uint64_t before = b->transport->traffic().at("site-a").received_bytes;
  a->transport->SendData("b", DataHeader(1), MakePayload(100000, 1));
  ASSERT_TRUE(RunUntil([&] { return b->events.frames.size() == 1; }));
  const SiteTraffic& in_b = b->transport->traffic().at("site-a");
  EXPECT_GE(in_b.received_bytes - before, 100064u);
  EXPECT_LT(in_b.received_bytes - before, 110000u);  // Pings come on top.
  ASSERT_TRUE(RunUntil([&] {
    return a->transport->traffic().at("site-b").sent_bytes > 100064;
  }));
}

TEST_F(TransportTest, PingMeasuresTheRoundTrip) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Introduce(*a, *b);
  EXPECT_TRUE(RunUntil([&] {
    return a->transport->traffic().at("site-b").rtt > absl::ZeroDuration();
  }));
}

TEST(StartTransport, RefusesAnAddressThatIsNone) {
  asio::io_context io;
  Recorder events;
  for (const char* address : {"", "127.0.0.1", "host:1", "127.0.0.1:70000"}) {
    Transport::Options options;
    options.listen_address = address;
    EXPECT_THAT(
        Transport::Start(io, options, &events),
        base::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
  }
}

}  // namespace
}  // namespace pactrain::agent
