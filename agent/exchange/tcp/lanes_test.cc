// Several connections between two agents of different sites.
#include <map>
#include <set>
#include <utility>

#include "agent/exchange/tcp/lane_proof.h"
#include "agent/exchange/tcp/test_transports.h"
#include "asio/read.hpp"
#include "asio/write.hpp"
#include "base/status_matchers.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using asio::ip::tcp;
using protocol::FrameHeader;
using protocol::GroupControl;

// Hands bytes on between the diallers of its port and another; knows how many
// went each way on each connection, and can cut one.
class Relay {
 public:
  Relay(asio::io_context& io, const std::string& target)
      : io_(io), acceptor_(io, {asio::ip::make_address("127.0.0.1"), 0}) {
    const int port = std::stoi(target.substr(target.rfind(':') + 1));
    target_ = {asio::ip::make_address("127.0.0.1"),
               static_cast<uint16_t>(port)};
    Accept();
  }
  std::string address() const {
    return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }
  size_t connections() const { return pairs_.size(); }
  // Connections that more than `bytes` went over to the target.
  int Busy(uint64_t bytes) const {
    int busy = 0;
    for (const auto& pair : pairs_) busy += pair->to.moved > bytes;
    return busy;
  }
  void Cut(size_t number) {
    asio::error_code ignored;
    pairs_.at(number)->dialler.close(ignored);
    pairs_.at(number)->target.close(ignored);
  }

 private:
  struct Way {
    std::array<char, 16384> buffer;
    uint64_t moved = 0;
  };
  struct Pair {
    explicit Pair(asio::io_context& io) : dialler(io), target(io) {}
    tcp::socket dialler, target;
    Way to, back;
  };

  void Accept() {
    acceptor_.async_accept([this](asio::error_code error, tcp::socket socket) {
      if (error) return;
      auto pair = std::make_shared<Pair>(io_);
      pair->dialler = std::move(socket);
      pair->target.connect(target_);
      pairs_.push_back(pair);
      Move(pair, pair->dialler, pair->target, pair->to);
      Move(pair, pair->target, pair->dialler, pair->back);
      Accept();
    });
  }
  void Move(std::shared_ptr<Pair> pair, tcp::socket& from, tcp::socket& to,
            Way& way) {
    from.async_read_some(
        asio::buffer(way.buffer),
        [this, pair, &from, &to, &way](asio::error_code error, size_t bytes) {
          asio::error_code ignored;
          if (error) return to.close(ignored), void();
          way.moved += bytes;
          asio::async_write(
              to, asio::buffer(way.buffer, bytes),
              [this, pair, &from, &to, &way](asio::error_code bad, size_t) {
                if (!bad) Move(pair, from, to, way);
              });
        });
  }

  asio::io_context& io_;
  tcp::acceptor acceptor_;
  tcp::endpoint target_;
  std::vector<std::shared_ptr<Pair>> pairs_;
};

class LanesTest : public TestTransports {
 protected:
  static constexpr int kConnections = 4;

  LanesTest() { limits_.far_rtt = absl::ZeroDuration(); }

  std::unique_ptr<Node> MakeNode(const std::string& name) {
    Transport::Options options;
    options.second_dial = absl::Hours(24);
    options.connections_per_link = kConnections;
    return TestTransports::MakeNode(name, options);
  }
  // a dials b through the relay.
  void Join(Node& a, Node& b) {
    relay_ = std::make_unique<Relay>(io_, b.transport->listen_address());
    Transport::Peer behind = b.AsPeer();
    behind.address = relay_->address();
    a.transport->SetPeers({behind});
    b.transport->SetPeers({a.AsPeer()});
    ASSERT_TRUE(RunUntil([&] { return HaveAll(a, b); }));
  }
  static bool HaveAll(const Node& a, const Node& b) {
    return a.transport->ConnectionsWith(b.name) == kConnections &&
           b.transport->ConnectionsWith(a.name) == kConnections;
  }
  static Payload MakePayload(size_t bytes, uint16_t seed) {
    auto data = std::make_shared<std::vector<uint8_t>>(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      (*data)[i] = static_cast<uint8_t>(seed + i);
    }
    return {data, absl::MakeConstSpan(*data)};
  }
  static FrameHeader DataHeader(uint64_t step, uint16_t frame) {
    FrameHeader header;
    header.step = step;
    header.frame = frame;
    header.leg = protocol::Leg::kUp;
    return header;
  }
  // Whether `b` hangs up on one who says that it is `a` and this a lane.
  bool IsClosed(const Node& a, const Node& b, uint16_t lane,
                const std::vector<OutFrame>& more) {
    auto raw = DialRaw(b);
    const protocol::PeerHello hello{.agent = a.name,
                                    .incarnation = a.incarnation,
                                    .cluster_id = "",
                                    .expected_agent = b.name,
                                    .number = 1000,
                                    .lane = lane};
    std::vector<OutFrame> frames = {OutFrame(hello)};
    frames.insert(frames.end(), more.begin(), more.end());
    for (const OutFrame& frame : frames) {
      asio::write(raw, asio::buffer(frame.header));
      asio::write(raw, asio::buffer(frame.payload.bytes.data(),
                                    frame.payload.bytes.size()));
    }
    return RunUntilClosed(raw);
  }
  static GroupControl Control(uint64_t step) {
    protocol::Abort abort;
    abort.step = step;
    return {{"job", 0}, abort};
  }

  std::unique_ptr<Relay> relay_;
};

TEST_F(LanesTest, EachFrameArrivesOnceAndAllConnectionsCarrySome) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Join(*a, *b);
  constexpr uint16_t kFrames = 2000;
  for (uint16_t i = 0; i < kFrames; ++i) {
    a->transport->SendData("b", DataHeader(0, i), MakePayload(8192, i));
    b->transport->SendData("a", DataHeader(0, i), MakePayload(100, i));
  }
  ASSERT_TRUE(RunUntil([&] {
    return a->events.frames.size() == kFrames &&
           b->events.frames.size() == kFrames;
  }));
  std::set<uint16_t> seen;
  for (const Frame& frame : b->events.frames) {
    EXPECT_TRUE(seen.insert(frame.header.frame).second);
    EXPECT_EQ(frame.payload.bytes, MakePayload(8192, frame.header.frame).bytes);
  }
  EXPECT_EQ(relay_->connections(), size_t{kConnections});
  EXPECT_EQ(relay_->Busy(100'000), kConnections);
}

TEST_F(LanesTest, OverANearLinkOneCarriesAll) {
  limits_.far_rtt = kFarRtt;
  auto a = MakeNode("a"), b = MakeNode("b");
  Join(*a, *b);
  constexpr uint16_t kFrames = 200;
  for (uint16_t i = 0; i < kFrames; ++i) {
    a->transport->SendData("b", DataHeader(0, i), MakePayload(8192, i));
  }
  ASSERT_TRUE(RunUntil([&] { return b->events.frames.size() == kFrames; }));
  for (uint16_t i = 0; i < kFrames; ++i) {
    EXPECT_EQ(b->events.frames[i].header.frame, i);
  }
  EXPECT_EQ(relay_->connections(), size_t{kConnections});
  EXPECT_EQ(relay_->Busy(100'000), 1);
}

TEST_F(LanesTest, DataNeverOvertakesControl) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Join(*a, *b);
  constexpr uint64_t kSteps = 500;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    a->transport->SendControl("b", Control(step));
    for (uint16_t i = 0; i < 8; ++i) {
      a->transport->SendData("b", DataHeader(step, i), MakePayload(3000, i));
    }
  }
  ASSERT_TRUE(RunUntil([&] { return b->events.order.size() == 9 * kSteps; }));
  uint64_t heard = 0;
  size_t data = 0;
  for (const char kind : b->events.order) {
    if (kind == 'c') {
      EXPECT_EQ(std::get<protocol::Abort>(b->events.controls[heard].body).step,
                heard + 1);
      ++heard;
    } else {
      EXPECT_LE(b->events.frames[data++].header.step, heard);
    }
  }
}

TEST_F(LanesTest, TheLossOfOneIsTheLossOfAllAndTheyComeBack) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Join(*a, *b);
  relay_->Cut(2);
  ASSERT_TRUE(RunUntil([&] {
    return !a->events.disconnected.empty() && !b->events.disconnected.empty();
  }));
  EXPECT_THAT(a->events.disconnected[0].message(),
              ::testing::HasSubstr("one broke"));
  EXPECT_TRUE(RunUntil([&] { return HaveAll(*a, *b); }));
  EXPECT_EQ(a->events.disconnected.size(), 1u);
  EXPECT_EQ(a->events.connected.size(), 2u);
}

TEST_F(LanesTest, OneSiteNeedsNone) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Transport::Peer peer = b->AsPeer();
  peer.site = a->site;
  a->transport->SetPeers({peer});
  peer = a->AsPeer();
  peer.site = b->site;
  b->transport->SetPeers({peer});
  ASSERT_TRUE(RunUntil([&] { return a->transport->IsConnected("b"); }));
  a->transport->SendData("b", DataHeader(0, 0), MakePayload(10, 0));
  ASSERT_TRUE(RunUntil([&] { return !b->events.frames.empty(); }));
  EXPECT_EQ(a->transport->ConnectionsWith("b"), 1);
}

// Pairs of agents share a link's connections.
TEST_F(LanesTest, PairsOfAgentsShareThem) {
  auto a = MakeNode("a"), b = MakeNode("b"), c = MakeNode("c");
  Transport::Peer b_peer = b->AsPeer(), c_peer = c->AsPeer();
  c_peer.site = b_peer.site;
  a->transport->SetPeers({b_peer, c_peer});
  b->transport->SetPeers({a->AsPeer()});
  c->transport->SetPeers({a->AsPeer()});
  ASSERT_TRUE(RunUntil([&] {
    return a->transport->ConnectionsWith("b") == 2 &&
           a->transport->ConnectionsWith("c") == 2;
  }));
}

// A peer by hand, who knows all but what only the pair's connection has.
TEST_F(LanesTest, sec_lane_of_a_stranger) {
  auto a = MakeNode("a"), b = MakeNode("b");
  Introduce(*a, *b);
  ASSERT_TRUE(RunUntil([&] { return HaveAll(*a, *b); }));
  const OutFrame data(DataHeader(0, 0), MakePayload(10, 0));
  const OutFrame proof(MakeLaneProof("guess", "guess", "a", "b"));
  EXPECT_TRUE(IsClosed(*a, *b, 4, {data})) << "data before a proof";
  EXPECT_TRUE(IsClosed(*a, *b, 4, {proof, data})) << "a wrong proof";
  EXPECT_TRUE(IsClosed(*a, *b, 4, {OutFrame(Control(1))})) << "control";
  EXPECT_TRUE(IsClosed(*a, *b, 1, {})) << "a lane that is there";
  EXPECT_TRUE(b->events.frames.empty());
  EXPECT_TRUE(b->events.controls.empty());
  EXPECT_TRUE(b->events.disconnected.empty());
  EXPECT_EQ(b->transport->ConnectionsWith("a"), kConnections);
}

TEST_F(LanesTest, sec_limits_LanesOfAPair) {
  Transport::Options options;
  options.second_dial = absl::Hours(24);
  options.connections_per_link = protocol::kMaxLanes;
  auto a = TestTransports::MakeNode("a", options);
  auto b = TestTransports::MakeNode("b", options);
  Introduce(*a, *b);
  EXPECT_TRUE(RunUntil([&] {
    return b->transport->ConnectionsWith("a") == protocol::kMaxLanes;
  }));
  EXPECT_TRUE(IsClosed(*a, *b, protocol::kMaxLanes, {}));
  EXPECT_EQ(b->transport->ConnectionsWith("a"), protocol::kMaxLanes);
}

TEST(LaneProof, IsGoodForOneLaneOneWay) {
  const auto proof = MakeLaneProof("pair", "lane", "a", "b");
  EXPECT_TRUE(IsSame(proof, MakeLaneProof("pair", "lane", "a", "b")));
  EXPECT_FALSE(IsSame(proof, MakeLaneProof("pair", "lane", "b", "a")));
  EXPECT_FALSE(IsSame(proof, MakeLaneProof("pair", "lane2", "a", "b")));
  EXPECT_FALSE(IsSame(proof, MakeLaneProof("pair2", "lane", "a", "b")));
}

}  // namespace
}  // namespace pactrain::agent
