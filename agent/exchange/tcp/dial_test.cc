// Who dials whom: firewalls that let connections out only, agents that nobody
// can dial, and both sides at once.
#include <utility>

#include "agent/exchange/tcp/test_transports.h"
#include "asio/write.hpp"
#include "base/status_matchers.h"

namespace pactrain::agent {
namespace {

using asio::ip::tcp;
using protocol::PeerHello;
using ::testing::HasSubstr;

constexpr absl::Duration kNever = absl::Hours(24);

class DialTest : public TestTransports {
 protected:
  std::unique_ptr<Node> MakeNode(const std::string& name,
                                 absl::Duration second_dial,
                                 bool nobody_dials = false) {
    Transport::Options options;
    options.second_dial = second_dial;
    options.nobody_dials = nobody_dials;
    return TestTransports::MakeNode(name, options);
  }
  static Transport::Peer At(const Node& node, const std::string& address) {
    Transport::Peer peer = node.AsPeer();
    peer.address = address;
    return peer;
  }
  // Each sends the other `frames` frames; all come, once and in order.
  void ExpectExchange(Node& a, Node& b, uint16_t frames) {
    for (uint16_t i = 0; i < frames; ++i) {
      protocol::FrameHeader header;
      header.frame = i;
      header.leg = protocol::Leg::kUp;
      a.transport->SendData(b.name, header, {});
      b.transport->SendData(a.name, header, {});
    }
    ASSERT_TRUE(RunUntil([&] {
      return a.events.frames.size() >= frames &&
             b.events.frames.size() >= frames;
    }));
    for (const Node* node : {&a, &b}) {
      ASSERT_EQ(node->events.frames.size(), frames);
      for (uint16_t i = 0; i < frames; ++i) {
        EXPECT_EQ(node->events.frames[i].header.frame, i);
      }
    }
  }
  bool Connected(const Node& a, const Node& b) {
    return !a.events.connected.empty() && !b.events.connected.empty();
  }
};

// Nothing listens there, which is refused at once.
constexpr char kClosed[] = "127.0.0.1:1";

TEST_F(DialTest, TheLargerNameDialsWhereTheSmallerCannot) {
  auto a = MakeNode("a", kNever), b = MakeNode("b", absl::Milliseconds(20));
  a->transport->SetPeers({At(*b, kClosed)});
  b->transport->SetPeers({a->AsPeer()});
  ASSERT_TRUE(RunUntil([&] { return Connected(*a, *b); }));
  ExpectExchange(*a, *b, 20);
}

TEST_F(DialTest, TheLargerNameWaitsForTheSmaller) {
  auto a = MakeNode("a", kNever), b = MakeNode("b", kNever);
  b->transport->SetPeers({a->AsPeer()});
  a->transport->SetPeers({At(*b, kClosed)});
  const absl::Duration end = base::MonotonicNow() + absl::Milliseconds(300);
  EXPECT_TRUE(RunUntil([&] { return base::MonotonicNow() > end; }));
  EXPECT_FALSE(Connected(*a, *b));
}

TEST_F(DialTest, AnAgentThatNobodyCanDialDialsAtOnceWhateverItsName) {
  for (const bool smaller : {true, false}) {
    auto hidden = MakeNode(smaller ? "a" : "z", kNever, /*nobody_dials=*/true);
    auto open = MakeNode("m", kNever);
    open->transport->SetPeers({At(*hidden, "none")});
    hidden->transport->SetPeers({open->AsPeer()});
    ASSERT_TRUE(RunUntil([&] { return Connected(*hidden, *open); })) << smaller;
    ExpectExchange(*hidden, *open, 20);
    // And again after a loss that the open side, which cannot dial, sees first.
    open->transport->ClosePeer(hidden->name, "a test");
    ASSERT_TRUE(RunUntil([&] { return open->events.connected.size() == 2; }));
  }
}

TEST_F(DialTest, WhenBothDialAtOnceOneConnectionStaysAndNoFrameIsLost) {
  for (int round = 0; round < 50; ++round) {
    auto a = MakeNode("a", absl::ZeroDuration());
    auto b = MakeNode("b", absl::ZeroDuration());
    a->transport->SetPeers({b->AsPeer()});
    b->transport->SetPeers({a->AsPeer()});
    ASSERT_TRUE(RunUntil([&] { return Connected(*a, *b); }));
    ExpectExchange(*a, *b, 20);
    for (const Node* node : {a.get(), b.get()}) {
      EXPECT_EQ(node->events.connected.size(), 1) << round;
      EXPECT_TRUE(node->events.disconnected.empty()) << round;
    }
  }
}

// Name look-ups and connects that end after their transport: sanitizers see it.
TEST_F(DialTest, ATransportMayGoWhileItDials) {
  const auto b = MakeNode("b", kNever);
  for (int polls = 0; polls < 40; ++polls) {
    auto a = MakeNode("a", absl::ZeroDuration());
    a->transport->SetPeers({b->AsPeer()});
    for (int i = 0; i < polls; ++i) io_.poll_one();
    a.reset();
    io_.run_for(std::chrono::milliseconds(2));
  }
}

// The order of a collision, step by step: the peer is played by the test, which
// both listens (where the node dials it) and dials.
class CollisionTest : public DialTest {
 protected:
  // `peer`: the name that the test plays.
  void Start(const std::string& name, const std::string& peer) {
    node_ = MakeNode(name, absl::ZeroDuration());
    peer_ = {peer, base::DigestOf(peer), "site", ""};
    acceptor_.emplace(io_,
                      tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0));
    peer_.address =
        absl::StrCat("127.0.0.1:", acceptor_->local_endpoint().port());
    node_->transport->SetPeers({peer_});
    acceptor_->async_accept([&](const asio::error_code&, tcp::socket socket) {
      accepted_.emplace(std::move(socket));
    });
    ASSERT_TRUE(RunUntil([&] { return accepted_.has_value(); }));
    ASSERT_TRUE(HelloComes(*accepted_));
  }
  void SayHello(tcp::socket& socket, uint64_t number, bool answer = false) {
    const OutFrame frame(PeerHello{peer_.agent, peer_.incarnation, "",
                                   answer ? "" : node_->name, number});
    asio::write(socket, asio::buffer(frame.header));
    asio::write(socket, asio::buffer(frame.payload.bytes.data(),
                                     frame.payload.bytes.size()));
  }
  tcp::socket Dial(uint64_t number) {
    tcp::socket socket = DialRaw(*node_);
    SayHello(socket, number);
    return socket;
  }
  // A byte is there to be read within a bounded time.
  bool HelloComes(tcp::socket& socket) {
    return RunUntil([&] { return socket.available() > 0; });
  }
  // Everything that is on its way has been handled.
  void Settle() {
    auto other = DialRaw(*node_);
    asio::write(other, asio::buffer(std::string(64, 'x')));
    ASSERT_TRUE(RunUntilClosed(other));
  }

  std::unique_ptr<Node> node_;
  Transport::Peer peer_;
  std::optional<tcp::acceptor> acceptor_;
  std::optional<tcp::socket> accepted_;  // The node dialled it; hello not read.
};

TEST_F(CollisionTest, TheSmallerNameKeepsItsOwnWhileThatIsNotAnswered) {
  Start("a", "b");
  auto dialled = Dial(1);
  Settle();
  EXPECT_EQ(dialled.available(), 0u);
  EXPECT_TRUE(node_->events.connected.empty());
  SayHello(*accepted_, 2, /*answer=*/true);
  ASSERT_TRUE(RunUntil([&] { return !node_->events.connected.empty(); }));
  EXPECT_EQ(dialled.available(), 0u);
  EXPECT_EQ(node_->events.connected.size(), 1);
}

TEST_F(CollisionTest, TheSmallerNameTakesTheOthersWhenItsOwnFails) {
  Start("a", "b");
  auto dialled = Dial(1);
  Settle();
  EXPECT_TRUE(node_->events.connected.empty());
  accepted_->close();
  EXPECT_TRUE(HelloComes(dialled));
  EXPECT_TRUE(RunUntil([&] { return node_->events.connected.size() == 1; }));
}

TEST_F(CollisionTest, TheLargerNameGivesItsOwnUpWhenItAnswers) {
  Start("b", "a");
  auto dialled = Dial(1);
  EXPECT_TRUE(HelloComes(dialled));
  EXPECT_TRUE(RunUntilClosed(*accepted_));
  EXPECT_TRUE(RunUntil([&] { return node_->events.connected.size() == 1; }));
  EXPECT_TRUE(node_->events.disconnected.empty());
}

TEST_F(CollisionTest, AnOlderHelloThatComesLateIsLeftAlone) {
  Start("a", "b");
  SayHello(*accepted_, 6, /*answer=*/true);
  ASSERT_TRUE(RunUntil([&] { return !node_->events.connected.empty(); }));
  auto late = Dial(5);
  EXPECT_TRUE(RunUntilClosed(late));
  EXPECT_TRUE(node_->events.disconnected.empty());
  EXPECT_TRUE(node_->transport->IsConnected("b"));
  // A newer one means that the peer has lost the connection.
  auto newer = Dial(7);
  EXPECT_TRUE(RunUntil([&] { return node_->events.connected.size() == 2; }));
  EXPECT_EQ(node_->events.disconnected.size(), 1);
}

TEST_F(TestTransports, OfARangeTheFirstFreePortIsTaken) {
  Transport::Options options;
  const auto first = MakeNode("a", options);
  const std::string taken = first->transport->listen_address();
  const int port = std::stoi(taken.substr(taken.rfind(':') + 1));
  options.listen_address = absl::StrCat(taken, "-", port + 50);
  const auto second = MakeNode("b", options);
  const std::string next = second->transport->listen_address();
  EXPECT_GT(std::stoi(next.substr(next.rfind(':') + 1)), port);
  EXPECT_LE(std::stoi(next.substr(next.rfind(':') + 1)), port + 50);
}

TEST_F(TestTransports, ARangeWithoutAFreePortIsSaidToBeOne) {
  Transport::Options options;
  const auto first = MakeNode("a", options);
  const std::string taken = first->transport->listen_address();
  const int port = std::stoi(taken.substr(taken.rfind(':') + 1));
  options.listen_address = absl::StrCat("127.0.0.1:", port + 1);
  Recorder events;
  // Ours or somebody else's: both are taken.
  const auto second = Transport::Start(io_, options, &events);
  options.listen_address = absl::StrCat(taken, "-", port + 1);
  EXPECT_THAT(Transport::Start(io_, options, &events),
              base::StatusIs(absl::StatusCode::kUnavailable,
                             HasSubstr("none of its ports is free; give "
                                       "another one, a range of ports")));
}

}  // namespace
}  // namespace pactrain::agent
