// Strangers who open connections without a word, from many addresses and again
// and again: the job's own agents get in and come back meanwhile.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/exchange/tcp/test_tls_transports.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

enum class Proof { kCertificates, kJobKey, kPlainText };

std::string NameOf(const ::testing::TestParamInfo<Proof>& info) {
  switch (info.param) {
    case Proof::kCertificates:
      return "Certificates";
    case Proof::kJobKey:
      return "JobKey";
    case Proof::kPlainText:
      return "PlainText";
  }
  return "";
}

class FloodTest : public TlsTransports,
                  public ::testing::WithParamInterface<Proof> {
 protected:
  // No stranger's connection ends by itself.
  FloodTest() { limits_.handshake = absl::Hours(1); }

  base::TlsFiles Issue(const std::string& agent) const override {
    switch (GetParam()) {
      case Proof::kCertificates:
        return TlsTransports::Issue(agent);
      case Proof::kJobKey:
        return base::IssueByJobKey('1', UriOf(agent));
      case Proof::kPlainText:
        return {};
    }
    return {};
  }
  // One more stranger's connection to b. The first and the last ones stay open
  // unless b ends them: as many each as strangers may have.
  void DialOne() {
    constexpr int kKept = protocol::kMaxPeerHandshakes;
    idle_.push_back(
        DialRaw(*b_, absl::StrCat("127.0.1.", 1 + dialled_++ % sources_)));
    if (idle_.size() > 2 * kKept) idle_.erase(idle_.begin() + kKept);
  }
  // The same, with new connections as fast as b takes them. (Who is faster
  // fills the kernel's queue, where nobody has a name yet.)
  bool RunFloodedUntil(const std::function<bool()>& done) {
    constexpr uint64_t kWaiting = 8;
    return RunUntil([&] {
      if (done()) return true;
      const uint64_t ended = Refused(base::Refusal::kUnproven) +
                             Refused(base::Refusal::kHandshake);
      if (dialled_ < ended + protocol::kMaxPeerHandshakes + kWaiting) DialOne();
      return false;
    });
  }
  uint64_t Refused(base::Refusal refusal) const {
    return b_->transport->refused().of(refusal);
  }
  void FillPlaces() {
    EXPECT_TRUE(
        RunFloodedUntil([&] { return Refused(base::Refusal::kUnproven) > 0; }));
  }
  // Agent a, which b expects, dials b.
  void ExpectJoinsAndComesBack() {
    const auto a = MakeNode("a");
    b_->transport->SetPeers({a->AsPeer(), c_->AsPeer()});
    a->transport->SetPeers({b_->AsPeer()});
    const auto connected = [&] {
      return a->transport->IsConnected("b") && b_->transport->IsConnected("a");
    };
    EXPECT_TRUE(RunFloodedUntil(connected));
    for (size_t times = 1; times <= 3; ++times) {
      a->transport->ClosePeer("b", "a test");
      EXPECT_TRUE(RunFloodedUntil(
          [&] { return b_->events.disconnected.size() == times; }));
      EXPECT_TRUE(RunFloodedUntil(connected));
    }
    EXPECT_TRUE(c_->events.disconnected.empty());
    b_->events.disconnected.clear();  // Those of a.
    ExpectExchangeGoesOn();
    a->transport->SetPeers({});
  }

  uint64_t sources_ = 1;
  uint64_t dialled_ = 0;
  std::vector<asio::ip::tcp::socket> idle_;
};

INSTANTIATE_TEST_SUITE_P(Each, FloodTest,
                         ::testing::Values(Proof::kCertificates, Proof::kJobKey,
                                           Proof::kPlainText),
                         NameOf);

TEST_P(FloodTest, sec_idle_flood_FromAFewAddresses) {
  sources_ = 5;
  StartExchange();
  FillPlaces();
  ExpectJoinsAndComesBack();
}

TEST_P(FloodTest, sec_idle_flood_FromMoreAddressesThanPlaces) {
  sources_ = 2 * protocol::kMaxPeerHandshakes;
  StartExchange();
  FillPlaces();
  ExpectJoinsAndComesBack();
}

// As from behind a NAT that strangers are behind, too.
TEST_P(FloodTest, sec_idle_flood_FromThePeersOwnAddress) {
  options_.inbound.open.from_loopback = protocol::kMaxConnectionsPerSource;
  c_ = MakeNode("c");
  b_ = MakeNode("b");
  Introduce(*b_, *c_);
  for (int i = 0; i < 2 * protocol::kMaxConnectionsPerSource; ++i) {
    idle_.push_back(DialRaw(*b_));
  }
  ASSERT_TRUE(RunUntil([&] { return Refused(base::Refusal::kSource) > 0; }));
  const auto a = MakeNode("a");
  b_->transport->SetPeers({a->AsPeer(), c_->AsPeer()});
  a->transport->SetPeers({b_->AsPeer()});
  EXPECT_TRUE(RunUntil([&] { return b_->transport->IsConnected("a"); }));
  ExpectExchangeGoesOn();
}

// Each is counted once, by the limit that was reached, and told once a minute.
TEST_P(FloodTest, sec_idle_flood_IsCountedAndTold) {
  StartExchange();
  constexpr uint64_t kBeyond = 100;
  for (uint64_t i = 0; i < protocol::kMaxPeerHandshakes + kBeyond; ++i) {
    idle_.push_back(DialRaw(*b_, "127.0.1.1"));
  }
  EXPECT_TRUE(
      RunUntil([&] { return Refused(base::Refusal::kUnproven) == kBeyond; }));
  EXPECT_EQ(Refused(base::Refusal::kHandshake), 0u);
  EXPECT_EQ(log_.Count("data connection from 127.0.1.1 refused"), 1)
      << log_.text();
  EXPECT_TRUE(log_.Has("the oldest whose sender is not known gives way"))
      << log_.text();
  // The youngest are still open.
  idle_.back().non_blocking(true);
  char byte;
  asio::error_code error;
  idle_.back().read_some(asio::buffer(&byte, 1), error);
  EXPECT_EQ(error, asio::error::would_block);
}

}  // namespace
}  // namespace pactrain::agent
