// What one identity may ask of a real coordinator: who wants more loses all
// connections, is named, and gets no other for a while.
#include <deque>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/tls/job_key.h"
#include "coordinator/rpc/test_attacks.h"
#include "gmock/gmock.h"
#include "protocol/limits.h"
#include "protocol/proto_convert.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;

class BudgetsTest : public AttackFixture {
 protected:
  // With `key` as its own; returns what it made for the job "vision" alone.
  std::string StartWithJobKey(const std::string& key) {
    Start(base::IssueByJobKey(key, "spiffe://pactrain/coordinator"));
    return *base::JobKey::FromText(key)->NewBoundText("vision.job.pactrain");
  }
};

// An agent's, as a frame of the first call of its connection.
std::string Says(const protocol::AgentMessage& message) {
  const std::string bytes = protocol::ToProto(message).SerializeAsString();
  std::string head(5, '\0');  // Not compressed; its size.
  head[3] = static_cast<char>(bytes.size() >> 8);
  head[4] = static_cast<char>(bytes.size());
  return http2::Frame(http2::kData, 0, 1, head + bytes);
}

// Calls that are taken back at once, thousands of them: few are served, and
// whose they are loses all connections, is named and gets no other.
TEST_F(BudgetsTest, sec_rapid_reset) {
  const base::TlsFiles evil = ca_.Issue("evil", "spiffe://pactrain/agent/evil");
  for (const char* method :
       {"/pactrain.v1.Admin/ListJobs", "/pactrain.v1.Coordinator/AgentStream",
        "/there.is.no/SuchMethod"}) {
    std::string bytes = http2::Preface();
    for (uint32_t stream = 1; stream < 30'000; stream += 2) {
      bytes += http2::Frame(http2::kHeaders, http2::kEndHeaders, stream,
                            http2::Call(method)) +
               http2::Frame(http2::kReset, 0, stream, std::string(4, '\x08'));
    }
    ExpectRefusedBeforeHttp2(bytes.substr(0, 4000));
    Stop();
    StartWith(Server::kCaps);
    RawClient beside = Dial(3);
    ASSERT_TRUE(beside.ShakeHands(evil));
    ASSERT_NE(beside.Receive(), "");
    RawClient client = Dial();
    ASSERT_TRUE(client.ShakeHands(evil));
    client.Send(bytes);
    client.ReceiveAll();
    beside.ReceiveAll();
    ExpectServes();
    uint64_t served = 0;
    for (const auto& [call, count] : server_->calls()) served += count.started;
    EXPECT_LE(served, Server::kBudgets.calls.at_once + 100u) << method;
    EXPECT_EQ(Refused(Refusal::kBudget), 1u);
    RawClient again = Dial();
    if (again.ShakeHands(evil)) again.Send(bytes.substr(0, 4000));
    again.ReceiveAll();
  }
  // Once by each of the three servers.
  EXPECT_TRUE(Eventually([&] {
    return log_.Count("127.0.0.2, spiffe://pactrain/agent/evil: more than ") ==
           3;
  })) << log_.text();
}

// A connection for each call is no way around it.
TEST_F(BudgetsTest, sec_limits_ConnectionsOfAnIdentity) {
  Stop();
  // However slow this machine is, it dials faster.
  budgets_.connections = {.at_once = 3, .per_second = 0.001};
  StartWith(Server::kCaps);
  const base::TlsFiles evil = ca_.Issue("evil", "spiffe://pactrain/agent/evil");
  std::vector<RawClient> open;
  for (int i = 0; i < 3; ++i) {
    open.push_back(Dial());
    ASSERT_TRUE(open.back().ShakeHands(evil));
    ASSERT_NE(open.back().Receive(), "");
  }
  EXPECT_EQ(Refused(Refusal::kBudget), 0u);
  RawClient more = Dial();
  more.ShakeHands(evil);
  more.ReceiveAll();                                   // It is over,
  for (RawClient& client : open) client.ReceiveAll();  // and so are the others.
  EXPECT_EQ(Refused(Refusal::kBudget), 1u);
  ExpectServes();
}

// What gRPC keeps for connections that stay open has a bound: of one identity,
// and of all that the key of one job makes.
TEST_F(BudgetsTest, sec_limits_OpenConnections) {
  Stop();
  budgets_.open = {.of_identity = 3, .of_maker = 5};
  const std::string first(64, '1');
  const std::string bound = StartWithJobKey(first);
  std::deque<RawClient> open;
  const auto dial = [&](const std::string& name) {
    open.push_back(Dial());
    return open.back().ShakeHands(base::IssueByJobKey(
               bound, absl::StrCat("spiffe://vision.job.pactrain/agent/", name,
                                   "..vision"))) &&
           !open.back().Receive().empty();
  };
  const auto answers = [](RawClient& client) {
    return client.Send(http2::Preface() +
                       http2::Frame(http2::kPing, 0, 0, "12345678")) &&
           ReadUntil(client, http2::kPing, http2::kAck);
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(dial("a")) << i;
  dial("a");
  open.back().ReceiveAll();
  EXPECT_TRUE(Eventually([&] {
    return log_.Has("connections of this identity are open as may be: 3.");
  })) << log_.text();
  open.pop_back();
  EXPECT_TRUE(answers(open.back()));  // It is not shut out.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(dial("b")) << i;
  dial("c");
  open.back().ReceiveAll();
  EXPECT_TRUE(Eventually([&] {
    return log_.Has("of job 'vision' are open as may be: 5.");
  })) << log_.text();
  EXPECT_EQ(Refused(Refusal::kBudget), 2u);
  open.clear();
  EXPECT_TRUE(Eventually([&] { return dial("c"); }));
}

// Nor are other names, which the key of one job makes as one likes.
TEST_F(BudgetsTest, sec_limits_NamesThatOneJobKeyMakes) {
  Stop();
  budgets_.connections = {.at_once = 2, .per_second = 0.001};
  const std::string first(64, '1');
  const std::string bound = StartWithJobKey(first);
  std::vector<RawClient> open;
  const auto dial = [&](const std::string& key, const std::string& uri) {
    open.push_back(Dial());
    return open.back().ShakeHands(base::IssueByJobKey(key, uri)) &&
           !open.back().Receive().empty();
  };
  const auto evil = [&] {
    return dial(bound, absl::StrCat("spiffe://vision.job.pactrain/agent/a",
                                    open.size(), "..vision"));
  };
  for (int i = 0; i < 8 * 2; ++i) EXPECT_TRUE(evil()) << i;
  EXPECT_EQ(Refused(Refusal::kBudget), 0u);
  evil();
  for (RawClient& client : open) client.ReceiveAll();
  EXPECT_EQ(Refused(Refusal::kBudget), 1u);
  EXPECT_TRUE(Eventually([&] {  // It is told after they have ended.
    return log_.Has("as many as all that one job key has made may have");
  })) << log_.text();
  // The coordinator's own key makes names for all of a cluster.
  for (int i = 0; i < 8 * 2 + 2; ++i) {
    EXPECT_TRUE(dial(first, absl::StrCat("spiffe://pactrain/agent/a", i))) << i;
  }
}

// Frames that belong to no call are no way around it, whether gRPC answers them
// or knows them not, on one connection or on one after the other.
TEST_F(BudgetsTest, sec_limits_BytesOfAnIdentity) {
  constexpr size_t kLimit = 400'000;
  const base::TlsFiles evil = ca_.Issue("evil", "spiffe://pactrain/agent/evil");
  const std::string ping = http2::Frame(http2::kPing, 0, 0, "12345678");
  const std::string unknown =
      http2::Frame(static_cast<http2::Type>(0x77), 0, 0, std::string(9000, 0));
  for (const std::string& frame : {ping, unknown}) {
    std::string bytes;
    while (bytes.size() < kLimit / 20) bytes += frame;
    for (const bool one_connection : {true, false}) {
      Stop();
      budgets_.bytes = {.at_once = kLimit, .per_second = 0.001};
      StartWith(Server::kCaps);
      std::deque<RawClient> clients;
      const auto dial = [&] {
        clients.push_back(Dial());
        return clients.back().ShakeHands(evil) &&
               clients.back().Send(http2::Preface());
      };
      // By then it has read all of it.
      const auto floods = [&] {
        RawClient& client = clients.back();
        if (!client.Send(bytes) ||
            !client.Send(http2::Frame(http2::kPing, 0, 0, "the last"))) {
          return false;
        }
        std::string got;
        while (got.find("the last") == std::string::npos) {
          const std::string more = client.Receive();
          if (more.empty()) return false;
          got += more;
        }
        return true;
      };
      const auto turn = [&] {
        if (!floods()) return false;
        if (one_connection) return true;
        clients.clear();
        return dial();
      };
      ASSERT_TRUE(dial());
      // What a connection that is over has sent may have been streams.
      const int within = one_connection ? 10 : 1;
      for (int i = 0; i < within; ++i) EXPECT_TRUE(turn()) << i;
      EXPECT_EQ(Refused(Refusal::kBudget), 0u);
      for (int i = 0; i < 20 && turn(); ++i) {
      }
      // It is over as soon as they are counted.
      clients.clear();
      EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kBudget) == 1; }));
      dial();
      EXPECT_THAT(clients.back().ReceiveAll(),
                  ::testing::Not(HasSubstr("the last")));
      ExpectServes();
    }
  }
  EXPECT_TRUE(Eventually([&] {
    return log_.Count(absl::StrCat("more than ", kLimit, " bytes at once")) ==
           4;
  })) << log_.text();
}

// Streams whose headers gRPC refuses become no calls, and cost as much.
TEST_F(BudgetsTest, sec_limits_StreamsThatBecomeNoCalls) {
  const base::TlsFiles evil = ca_.Issue("evil", "spiffe://pactrain/agent/evil");
  constexpr int kStreams = 300;
  std::string bytes = http2::Preface();
  for (uint32_t stream = 1; stream < 2 * kStreams; stream += 2) {
    bytes += http2::Frame(http2::kHeaders, 5, stream, "\x82") +
             http2::Frame(http2::kReset, 0, stream, std::string(4, 0));
  }
  for (const bool one_connection : {true, false}) {
    Stop();
    budgets_.bytes = {.at_once = 400'000, .per_second = 0.001};
    StartWith(Server::kCaps);
    // These alone are far fewer.
    const int turns = one_connection ? 1 : 25;
    ASSERT_LT(turns * (bytes.size() + 4'000), 400'000u);
    for (int i = 0; i < turns; ++i) {
      RawClient client = Dial();
      if (!client.ShakeHands(evil) || !client.Send(bytes)) break;
      if (one_connection) client.ReceiveAll();
    }
    EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kBudget) == 1; }));
    ExpectServes();
  }
}

// Messages without an end on one call, of whichever service.
TEST_F(BudgetsTest, sec_limits_MessagesOfACall) {
  const base::TlsFiles evil = ca_.Issue("evil", "spiffe://pactrain/agent/evil");
  constexpr size_t kLimit = 400'000;
  constexpr int kMessages = 200;
  struct Flood {
    const char* method;
    std::string first, each;
  };
  for (const Flood& flood :
       {Flood{"/pactrain.v1.Coordinator/AgentStream",
              Says(protocol::AgentHello{"evil", base::DigestOf("evil"), "evil",
                                        "127.0.0.1:9", "1", ""}),
              Says(protocol::Heartbeat{})},
        Flood{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              "", http2::Frame(http2::kData, 0, 1, std::string(5, 0))}}) {
    Stop();
    budgets_.bytes = {.at_once = kLimit, .per_second = 0.001};
    StartWith(Server::kCaps);
    RawClient client = Dial();
    ASSERT_TRUE(client.ShakeHands(evil));
    std::string bytes =
        absl::StrCat(http2::Preface(),
                     http2::Frame(http2::kHeaders, http2::kEndHeaders, 1,
                                  http2::Call(flood.method)),
                     flood.first);
    for (int i = 0; i < kMessages; ++i) bytes += flood.each;
    ASSERT_LT(bytes.size() + 10'000, kLimit);
    client.Send(bytes);
    client.ReceiveAll();
    EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kBudget) == 1; }))
        << flood.method;
    ExpectServes();
  }
}

TEST_F(BudgetsTest, sec_limits_ChangesOfTlsKeys) {
  Stop();
  budgets_.bytes = {.at_once = 400'000, .per_second = 0.001};
  StartWith(Server::kCaps);
  RawClient client = Dial();
  ASSERT_TRUE(
      client.ShakeHands(ca_.Issue("evil", "spiffe://pactrain/agent/evil")));
  ASSERT_TRUE(client.Send(http2::Preface()));
  for (int i = 0; i < 1000 && client.UpdateKeys(); ++i) {
  }
  client.ReceiveAll();
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kBudget) == 1; }));
  ExpectServes();
}

// gRPC serves its reflection with a thread for each stream that is open.
TEST_F(BudgetsTest, sec_limits_ThreadsOfReflection) {
  const auto threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  const auto before = threads();
  std::string bytes = http2::Preface();
  for (uint32_t stream = 1; stream < 2 * protocol::kMaxConcurrentStreams;
       stream += 2) {
    bytes +=
        http2::Frame(http2::kHeaders, 4, stream,
                     http2::Call("/grpc.reflection.v1alpha.ServerReflection/"
                                 "ServerReflectionInfo"));
  }
  std::deque<RawClient> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(Dial());
    ASSERT_TRUE(clients.back().ShakeHands(Operator()));
    ASSERT_TRUE(clients.back().Send(bytes));
  }
  // Some are refused, so all have come.
  EXPECT_TRUE(ReadUntil(clients.back(), http2::kHeaders, 5));
  EXPECT_LT(threads(), before + 32);
  ExpectServes();
}

}  // namespace
}  // namespace pactrain::coordinator
