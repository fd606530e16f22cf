// Who is no member of a generation gets nowhere in its exchange, with whatever
// certificate: who holds a job's key can make one for any name.
#include <algorithm>

#include "agent/exchange/tcp/key_proofs.h"
#include "agent/exchange/tcp/test_transports.h"
#include "asio/write.hpp"
#include "base/log_capture.h"
#include "base/status_matchers.h"
#include "base/tls/test_certs.h"

namespace pactrain::agent {
namespace {

using protocol::GenerationKey;
using protocol::GroupControl;
using protocol::KeyProof;
using protocol::PeerControl;
using protocol::PeerHello;
using protocol::Ready;
using ::testing::HasSubstr;

GenerationKey MakeKey(uint64_t generation, uint8_t byte) {
  GenerationKey key{{9, generation}, {}};
  key.key.bytes.fill(byte);
  return key;
}
const GenerationKey kFirst = MakeKey(1, 11);
const GenerationKey kSecond = MakeKey(2, 22);

// The job's name tells who said it.
GroupControl ReadyFor(const GenerationKey& generation,
                      const std::string& job = "job") {
  return {{job, 0}, Ready{generation.generation, 0, false}};
}

class DataplaneTest : public TestTransports {
 protected:
  using Generations = std::vector<GenerationKey>;

  std::unique_ptr<Node> MakeNode(const std::string& name, bool tls = true) {
    Transport::Options options;
    options.second_dial = absl::Hours(24);  // dial_test has that.
    if (tls) {
      options.tls = base::IssueByJobKey('1', "spiffe://pactrain/agent/" + name);
    }
    return TestTransports::MakeNode(name, options);
  }
  static Transport::Peer PeerOf(const Node& node, const Generations& shared) {
    Transport::Peer peer = node.AsPeer();
    peer.generations = shared;
    return peer;
  }
  // b and c are members, and so is a, whose name somebody else has taken.
  void StartExchange(const Generations& shared) {
    a_ = MakeNode("a");
    b_ = MakeNode("b");
    c_ = MakeNode("c");
    SetMembers(shared);
    ASSERT_TRUE(RunUntil([&] { return c_->transport->IsConnected("b"); }));
  }
  void SetMembers(const Generations& shared) {
    b_->transport->SetPeers({PeerOf(*a_, shared), PeerOf(*c_, shared)});
    c_->transport->SetPeers({PeerOf(*b_, shared)});
  }
  // What b heard from `sender` of the generation.
  size_t Heard(const std::string& sender, const GenerationKey& generation) {
    const GroupControl said = ReadyFor(generation, "from-" + sender);
    return std::count(b_->events.controls.begin(), b_->events.controls.end(),
                      said);
  }
  void Say(Node& sender, const GenerationKey& generation) {
    sender.transport->SendControl("b",
                                  ReadyFor(generation, "from-" + sender.name));
  }
  void ExpectExchangeGoesOn(const GenerationKey& generation) {
    const size_t before = Heard("c", generation);
    Say(*c_, generation);
    EXPECT_TRUE(RunUntil([&] { return Heard("c", generation) > before; }));
    EXPECT_TRUE(c_->events.disconnected.empty());
  }
  // What a says of the generation, holding `own`, b does not hear.
  void ExpectRefused(const Generations& own, const GenerationKey& generation) {
    const uint64_t before = Refused();
    a_->transport->SetPeers({PeerOf(*b_, own)});
    EXPECT_TRUE(RunUntil([&] {
      Say(*a_, generation);
      return Refused() > before;
    }));
    EXPECT_EQ(Heard("a", generation), 0u);
  }
  void ExpectHeard(const Generations& own, const GenerationKey& generation) {
    a_->transport->SetPeers({PeerOf(*b_, own)});
    EXPECT_TRUE(RunUntil([&] {
      Say(*a_, generation);
      return Heard("a", generation) > 0;
    }));
  }
  // With keys that differ either end may be the first to see it.
  uint64_t Refused() const {
    uint64_t refused = b_->transport->refused().of(base::Refusal::kKey);
    if (a_) refused += a_->transport->refused().of(base::Refusal::kKey);
    return refused;
  }

  base::LogCapture log_;
  std::unique_ptr<Node> a_, b_, c_;
};

TEST_F(DataplaneTest, sec_dataplane_no_key) {
  StartExchange({kFirst});
  ExpectRefused({}, kFirst);
  EXPECT_THAT(log_.text(), HasSubstr("agent a speaks of generation"));
  ExpectRefused({MakeKey(1, 99)}, kFirst);
  ExpectExchangeGoesOn(kFirst);
  // A member gets in the same way.
  ExpectHeard({kFirst}, kFirst);
}

TEST_F(DataplaneTest, sec_dataplane_old_generation) {
  StartExchange({kFirst});
  ExpectHeard({kFirst}, kFirst);
  SetMembers({kFirst, kSecond});
  ExpectRefused({kFirst}, kSecond);
  // The key that it was once told.
  ExpectRefused({kFirst, MakeKey(2, 11)}, kSecond);
  ExpectExchangeGoesOn(kSecond);
  ExpectHeard({kFirst, kSecond}, kSecond);
}

TEST_F(DataplaneTest, ANewGenerationIsProvenOnTheOpenConnection) {
  StartExchange({kFirst});
  ExpectExchangeGoesOn(kFirst);
  SetMembers({kSecond});
  ExpectExchangeGoesOn(kSecond);
  EXPECT_EQ(c_->events.connected.size(), 1u);
}

TEST_F(DataplaneTest, sec_log_scan) {
  spdlog::set_level(spdlog::level::debug);  // Of log_.
  StartExchange({kFirst});
  ExpectRefused({MakeKey(1, 99)}, kFirst);
  ExpectExchangeGoesOn(kFirst);
  ASSERT_TRUE(log_.Has("connected with agent")) << "it logs less than it may";
  // Neither key, nor a part of it, in any of these forms.
  for (const std::string& key :
       {std::string(8, 11), std::string("0b0b0b0b0b0b0b0b"),
        std::string("0B0B0B0B0B0B0B0B"), std::string(8, 99),
        std::string("6363636363636363")}) {
    EXPECT_FALSE(log_.Has(key)) << key;
  }
}

// In plain text, where somebody on the way can record everything.
class PlainDataplaneTest : public DataplaneTest {
 protected:
  static void Send(asio::ip::tcp::socket& socket, const PeerControl& control) {
    const OutFrame frame(control);
    asio::write(socket, asio::buffer(frame.header));
    asio::write(socket, asio::buffer(frame.payload.bytes.data(),
                                     frame.payload.bytes.size()));
  }
  // Dials b by a hello that calls itself a; what b answers.
  PeerHello ShakeHands(asio::ip::tcp::socket& socket, const PeerHello& hello) {
    Send(socket, hello);
    socket.non_blocking(true);
    FrameDecoder decoder;
    std::vector<Frame> frames;
    EXPECT_TRUE(RunUntil([&] {
      uint8_t bytes[4096];
      asio::error_code error;
      const size_t size = socket.read_some(asio::buffer(bytes), error);
      EXPECT_OK(decoder.Feed(absl::MakeConstSpan(bytes, size), &frames));
      return !frames.empty();
    }));
    socket.non_blocking(false);
    return std::get<PeerHello>(
        *protocol::DecodeControl(frames[0].payload.bytes));
  }
};

TEST_F(PlainDataplaneTest, sec_dataplane_replay) {
  b_ = MakeNode("b", /*tls=*/false);
  const auto a = base::DigestOf("a");
  b_->transport->SetPeers({{"a", a, "site-a", "none", {kFirst}}});
  PeerHello hello{"a", a, "", "b", 1, {5, 5}};

  auto first = DialRaw(*b_);
  const PeerHello answer = ShakeHands(first, hello);
  EXPECT_FALSE(answer.nonce.empty());
  KeyProofs member(
      {"a", "b", hello.nonce.ToString() + answer.nonce.ToString()});
  ASSERT_OK_AND_ASSIGN(const auto proofs, member.SetGenerations({kFirst}));
  const KeyProof recorded = proofs.at(0);
  Send(first, recorded);
  Send(first, ReadyFor(kFirst));
  ASSERT_TRUE(RunUntil([&] { return b_->events.controls.size() == 1; }));

  auto second = DialRaw(*b_);
  hello.number = 2;
  EXPECT_NE(ShakeHands(second, hello).nonce, answer.nonce);
  Send(second, recorded);
  Send(second, ReadyFor(kFirst));
  EXPECT_TRUE(RunUntilClosed(second));
  EXPECT_EQ(Refused(), 1u);
  EXPECT_EQ(b_->events.controls.size(), 1u);
  EXPECT_THAT(log_.text(), HasSubstr("its proof is of another connection"));
}

}  // namespace
}  // namespace pactrain::agent
