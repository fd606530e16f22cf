// Who has no certificate, or a bad will, at the port of a real coordinator: it
// is refused or bounded, and everybody else is served as before.
//
// The strangers come from 127.0.0.2 and further, the good client from
// 127.0.0.1, so that they are different sources.
#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log_capture.h"
#include "base/test_descriptors.h"
#include "base/tls/test_certs.h"
#include "coordinator/rpc/test_raw_client.h"
#include "coordinator/rpc/test_server.h"
#include "gmock/gmock.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using base::Refusal;
using ::testing::HasSubstr;

// Reads until there is a frame like this, or the connection is over.
bool ReadUntil(RawClient& client, http2::Type type, uint8_t flags,
               std::string* payload = nullptr) {
  std::string all;
  while (!http2::Find(all, type, flags, payload)) {
    const std::string more = client.Receive();
    if (more.empty()) return false;
    all += more;
  }
  return true;
}

class AttackTest : public ServerFixture {
 protected:
  void SetUp() override { StartWith(Server::kCaps); }
  void StartWith(const base::ConnectionCaps::Limits& caps) {
    Start(ca_.Issue("coordinator", "spiffe://pactrain/coordinator"), caps);
  }
  RawClient Dial(int host = 2) {
    return RawClient(server_->address().port, host);
  }
  base::TlsFiles Operator() const {
    return ca_.Issue("operator", "spiffe://pactrain/operator");
  }
  // A proper client, from 127.0.0.1.
  void ExpectServes() {
    const auto context = MakeContext();
    context->set_wait_for_ready(true);
    v1::ListJobsResponse response;
    const grpc::Status status = v1::Admin::NewStub(ChannelOf(Operator()))
                                    ->ListJobs(context.get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  static bool Eventually(const std::function<bool()>& done) {
    const absl::Duration end = base::MonotonicNow() + absl::Minutes(2);
    while (!done()) {  // Asked once a turn: it may dial.
      if (base::MonotonicNow() > end) return false;
      poll(nullptr, 0, 10);
    }
    return true;
  }
  uint64_t Refused(Refusal refusal) const {
    return server_->refused_connections().of(refusal);
  }
  // These bytes of HTTP/2, in plain text and after a handshake without a
  // certificate: not a byte of HTTP/2 is answered.
  void ExpectRefusedBeforeHttp2(const std::string& bytes) {
    RawClient plain = Dial();
    plain.Send(bytes);
    EXPECT_FALSE(http2::Find(plain.ReceiveAll(), http2::kSettings, 0));
    RawClient nobody = Dial();
    if (nobody.ShakeHands()) {
      nobody.Send(bytes);
      EXPECT_EQ(nobody.ReceiveAll(), "");
    }
    EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kHandshake) >= 2; }));
    ExpectServes();
  }
  // The same from an operator: the connection may end, the coordinator lives.
  void ExpectSurvives(const std::string& bytes) {
    RawClient client = Dial();
    ASSERT_TRUE(client.ShakeHands(Operator()));
    client.Send(bytes);
    client.Send(http2::Frame(http2::kPing, 0, 0, "12345678"));
    // By then it has read all, if it reads on at all.
    ReadUntil(client, http2::kPing, http2::kAck);
    ExpectServes();
  }

  // After the preface: limits hold from an acknowledgement on, which the
  // preface's may have come too early to be.
  static void Agree(RawClient& client) {
    const std::string ping = http2::Frame(http2::kPing, 0, 0, "12345678");
    client.Send(ping);
    EXPECT_TRUE(ReadUntil(client, http2::kPing, http2::kAck));
    client.Send(http2::Frame(http2::kSettings, http2::kAck, 0, "") + ping);
    EXPECT_TRUE(ReadUntil(client, http2::kPing, http2::kAck));
  }

  base::LogCapture log_;
  const base::TestCa ca_{folder_};
};

std::string CallWith(const std::string& fields) {
  return http2::Preface() +
         http2::Frame(http2::kHeaders, http2::kEndHeaders, 1,
                      http2::Call("/pactrain.v1.Admin/ListJobs") + fields);
}

// A field whose value gRPC's parser has no name for, and then more metadata
// than it takes.
TEST_F(AttackTest, sec_grpc_cve_2023_1428) {
  for (const char* name : {"te", ":scheme", "grpclb_client_stats"}) {
    const std::string bytes =
        http2::Preface() +
        http2::Frame(http2::kHeaders, http2::kEndHeaders, 1,
                     http2::Field(name, "x") +
                         http2::Field("long", std::string(9000, 'x')));
    ExpectRefusedBeforeHttp2(bytes);
    ExpectSurvives(bytes);
  }
}

// Metadata in base64 that is none: the connection may end.
TEST_F(AttackTest, sec_grpc_cve_2023_32732) {
  const std::string bytes = CallWith(http2::Field("x-bin", "!"));
  ExpectRefusedBeforeHttp2(bytes);
  ExpectSurvives(bytes);
}

// A number of HPACK that never ends, and one field that has no end.
TEST_F(AttackTest, sec_grpc_cve_2023_33953) {
  for (const std::string& fields :
       {std::string(1, '\x7f') + std::string(8000, '\x80'),
        std::string(1, '\0') + http2::Number(1 << 30, 7) +
            std::string(8000, 'x')}) {
    ExpectRefusedBeforeHttp2(CallWith(fields));
    ExpectSurvives(CallWith(fields));
  }
}

// accept() that fails for want of descriptors: no crash, and who waited is
// served once there are some.
TEST_F(AttackTest, sec_grpc_cve_2023_4785_NoDescriptorsLeft) {
  ExpectServes();
  // What that connection held is free now, and not in the middle of an accept.
  EXPECT_TRUE(Eventually([&] { return server_->open_connections() == 0; }));
  std::optional<base::OneDescriptorLeft> scarce(std::in_place);
  RawClient waiting = Dial();  // It takes the last one.
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kDescriptors) > 0; }));
  scarce.reset();
  EXPECT_TRUE(waiting.ShakeHands(Operator()));
  ExpectServes();
}

// Calls that are taken back at once, thousands of them: few are served, and
// whose they are loses all connections, is named and gets no other.
TEST_F(AttackTest, sec_rapid_reset) {
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
  EXPECT_EQ(log_.Count("127.0.0.2, spiffe://pactrain/agent/evil: more than "),
            3)
      << log_.text();
}

// A connection for each call is no way around it.
TEST_F(AttackTest, sec_limits_ConnectionsOfAnIdentity) {
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

// Frames that belong to no call are no way around it, whether gRPC answers them
// or knows them not, on one connection or on one after the other.
TEST_F(AttackTest, sec_limits_BytesOfAnIdentity) {
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
  EXPECT_EQ(log_.Count(absl::StrCat("more than ", kLimit, " bytes at once")), 4)
      << log_.text();
}

// Streams whose headers gRPC refuses become no calls, and cost as much.
TEST_F(AttackTest, sec_limits_StreamsThatBecomeNoCalls) {
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

TEST_F(AttackTest, sec_limits_ChangesOfTlsKeys) {
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
TEST_F(AttackTest, sec_limits_ThreadsOfReflection) {
  const auto threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  const auto before = threads();
  RawClient client = Dial();
  ASSERT_TRUE(client.ShakeHands(Operator()));
  std::string bytes = http2::Preface();
  for (uint32_t stream = 1; stream < 2 * protocol::kMaxConcurrentStreams;
       stream += 2) {
    bytes +=
        http2::Frame(http2::kHeaders, 4, stream,
                     http2::Call("/grpc.reflection.v1alpha.ServerReflection/"
                                 "ServerReflectionInfo"));
  }
  ASSERT_TRUE(client.Send(bytes));
  // Some are refused, so all have come.
  EXPECT_TRUE(ReadUntil(client, http2::kHeaders, 5));
  EXPECT_LT(threads(), before + 32);
  ExpectServes();
}

TEST_F(AttackTest, sec_PortScannerIsNoHarm) {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    RawClient scanner = Dial();
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    if (i % 2 == 0 && !bytes.empty()) scanner.Send(bytes);
  }
  ExpectServes();
  EXPECT_TRUE(Eventually([&] { return server_->open_connections() == 0; }));
}

TEST_F(AttackTest, sec_EachSourceIsToldWithEachReasonOfItsOwn) {
  for (int tries = 0; tries < 2; ++tries) {
    Dial(2);
    Dial(3);
    Dial(3).Send("GET / HTTP/1.0\r\n\r\n");
  }
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kHandshake) == 6; }));
  const std::string begin = "refused a connection from 127.0.0.";
  EXPECT_EQ(log_.Count(begin), 3) << log_.text();
  for (const char* line :
       {"2: TLS handshake: it hung up without a word",
        "3: TLS handshake: it hung up without a word",
        "3: TLS handshake: it speaks something else than TLS (plain text?)"}) {
    EXPECT_EQ(log_.Count(begin + line), 1) << log_.text();
  }
}

TEST_F(AttackTest, sec_slowloris) {
  RawClient slow = Dial();
  // A ClientHello of 16 KiB, a byte at a time.
  std::string bytes("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03", 11);
  bytes += std::string(1000, '\0');
  bool over = false;
  for (size_t i = 0; i < bytes.size() && !over; ++i) {
    over = !slow.Send(bytes.substr(i, 1)) || slow.IsOver();
  }
  EXPECT_TRUE(over);
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kHandshake) == 1; }));
  ExpectServes();
}

TEST_F(AttackTest, sec_conn_flood) {
  std::vector<RawClient> idle;
  for (int i = 0; i < 1000; ++i) idle.push_back(Dial());
  ExpectServes();
  const uint64_t beyond = 1000 - protocol::kMaxConnectionsFromLoopback;
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kSource) >= beyond; }));
  EXPECT_EQ(log_.Count("refused a connection from 127.0.0.2"), 1)
      << log_.text();
  // Those inside of the limit are closed by the handshake's.
  EXPECT_TRUE(Eventually([&] { return server_->open_connections() <= 1; }));
  ExpectServes();
}

// From more addresses than the caps on each bound, and again and again: who has
// a certificate gets in meanwhile, and stays.
TEST_F(AttackTest, sec_idle_flood) {
  Stop();
  constexpr int kTotal = 40;
  StartWith({.total = kTotal, .per_source = 1, .from_loopback = kTotal / 2});
  RawClient stays = Dial(1);
  ASSERT_TRUE(stays.ShakeHands(Operator()));
  ASSERT_NE(stays.Receive(), "");
  std::atomic<bool> over = false;
  std::thread flood([&] {
    // The first keep their places, unless they are taken from them.
    std::deque<RawClient> first, later;
    for (uint64_t dialled = 0; !over;) {
      const uint64_t ended = Refused(Refusal::kTotal) +
                             Refused(Refusal::kSource) +
                             Refused(Refusal::kHandshake);
      if (dialled >= ended + kTotal + 8) {  // As fast as they are taken.
        std::this_thread::yield();
        continue;
      }
      const int host = 2 + static_cast<int>(dialled++ % 5);
      (first.size() < kTotal ? first : later).push_back(Dial(host));
      if (later.size() > 2 * kTotal) later.pop_front();  // It is over.
    }
  });
  EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kTotal) > 0; }));
  for (int i = 0; i < 3; ++i) {
    RawClient joins = Dial(1);
    EXPECT_TRUE(joins.ShakeHands(Operator()));
    EXPECT_NE(joins.Receive(), "");
  }
  ExpectServes();
  EXPECT_EQ(Refused(Refusal::kHandshake), 0u);
  over = true;
  flood.join();
  stays.Send(http2::Preface() + http2::Frame(http2::kPing, 0, 0, "12345678"));
  EXPECT_TRUE(ReadUntil(stays, http2::kPing, http2::kAck));
}

TEST_F(AttackTest, sec_limits_ConnectionsPerSource) {
  Stop();
  constexpr int kLimit = protocol::kMaxConnectionsPerSource;
  EXPECT_EQ(Server::kCaps.per_source, kLimit);
  // Who comes from loopback here stands for any source.
  StartWith({.total = 1000, .per_source = 1, .from_loopback = kLimit});
  std::vector<RawClient> idle;
  for (int i = 0; i < kLimit; ++i) {
    idle.push_back(Dial());
    ASSERT_TRUE(idle.back().ShakeHands(Operator()));
    ASSERT_NE(idle.back().Receive(), "");  // The server has seen it, too.
  }
  EXPECT_EQ(Refused(Refusal::kSource), 0u);
  EXPECT_EQ(Dial().ReceiveAll(), "");
  EXPECT_EQ(Refused(Refusal::kSource), 1u);
  ExpectServes();
  // The end of one makes room.
  idle.pop_back();
  EXPECT_TRUE(Eventually([&] { return Dial().ShakeHands(Operator()); }));
}

TEST_F(AttackTest, sec_limits_ConnectionsFromLoopback) {
  constexpr int kLimit = protocol::kMaxConnectionsFromLoopback;
  std::vector<RawClient> idle;
  for (int i = 0; i < kLimit; ++i) idle.push_back(Dial());
  EXPECT_TRUE(
      Eventually([&] { return server_->open_connections() == kLimit; }));
  EXPECT_EQ(Refused(Refusal::kSource), 0u);
  const RawClient newcomer = Dial();
  EXPECT_EQ(idle[0].ReceiveAll(), "");
  EXPECT_EQ(Refused(Refusal::kSource), 1u);
  EXPECT_EQ(Refused(Refusal::kHandshake), 0u);
  ExpectServes();  // From another address.
}

// As many as a coordinator holds, two descriptors each, from all the sources
// that takes.
TEST_F(AttackTest, sec_limits_ConnectionsOfAll) {
  constexpr int kLimit = protocol::kMaxConnections;
  base::AllowDescriptors(3 * kLimit + 200);
  std::vector<RawClient> idle;
  for (int i = 0; i < kLimit; ++i) {
    idle.push_back(Dial(2 + i / protocol::kMaxConnectionsFromLoopback));
  }
  EXPECT_TRUE(
      Eventually([&] { return server_->open_connections() == kLimit; }));
  EXPECT_EQ(Refused(Refusal::kSource), 0u);
  EXPECT_EQ(Refused(Refusal::kTotal), 0u);
  const RawClient newcomer = Dial(100);
  EXPECT_EQ(idle[0].ReceiveAll(), "");
  EXPECT_EQ(Refused(Refusal::kTotal), 1u);
  idle.clear();
  ExpectServes();
}

TEST_F(AttackTest, sec_limits_ConcurrentStreams) {
  const base::TlsFiles agent = ca_.Issue("a", "spiffe://pactrain/agent/a");
  RawClient client = Dial();
  ASSERT_TRUE(client.ShakeHands(agent));
  std::string bytes = http2::Preface();
  uint32_t stream = 1;
  const auto call = [&] {
    const std::string frame =
        http2::Frame(http2::kHeaders, http2::kEndHeaders, stream,
                     http2::Call("/pactrain.v1.Coordinator/AgentStream"));
    stream += 2;
    return frame;
  };
  for (int i = 0; i < protocol::kMaxConcurrentStreams; ++i) bytes += call();
  client.Send(bytes);
  Agree(client);
  const std::string ping = http2::Frame(http2::kPing, 0, 0, "12345678");
  client.Send(call() + ping);
  EXPECT_FALSE(ReadUntil(client, http2::kPing, http2::kAck));
  ExpectServes();
}

TEST_F(AttackTest, sec_limits_Metadata) {
  // Of a call whose metadata have this size, as HTTP/2 counts it: whether it
  // was answered.
  const auto is_answered = [&](size_t size) {
    RawClient client = Dial();
    EXPECT_TRUE(client.ShakeHands(Operator()));
    client.Send(http2::Preface());
    Agree(client);
    constexpr size_t kFieldOverhead = 32;
    constexpr char kMethod[] = "/pactrain.v1.Admin/ListJobs";
    for (const auto& [name, value] : http2::CallFields(kMethod)) {
      size -= name.size() + value.size() + kFieldOverhead;
    }
    const std::string fill(size - 1 - kFieldOverhead, 'x');
    client.Send(
        http2::Frame(http2::kHeaders, http2::kEndHeaders, 1,
                     http2::Call(kMethod) + http2::Field("x", fill)) +
        http2::Frame(http2::kData, http2::kEndStream, 1, std::string(5, '\0')));
    // Either the head of an answer or an error, which is nothing but a head.
    const auto has = [](const std::string& bytes, uint8_t flags) {
      return http2::Find(bytes, http2::kHeaders, http2::kEndHeaders | flags);
    };
    std::string bytes, more;
    do {
      more = client.Receive();
      bytes += more;
    } while (!more.empty() && !has(bytes, 0) && !has(bytes, http2::kEndStream));
    EXPECT_FALSE(more.empty());
    return has(bytes, 0);
  };
  EXPECT_TRUE(is_answered(protocol::kMaxMetadata));
  EXPECT_FALSE(is_answered(protocol::kMaxMetadata + 1));
  ExpectServes();
}

TEST_F(AttackTest, sec_limits_ControlMessage) {
  // An agent's first message of this size, and how its stream ends.
  const auto answer = [&](size_t size) {
    const auto context = MakeContext();
    const auto stub = v1::Coordinator::NewStub(
        ChannelOf(ca_.Issue("a", "spiffe://pactrain/agent/a")));
    const auto stream = stub->AgentStream(context.get());
    v1::AgentMessage message;
    message.mutable_hello()->set_agent(std::string(size - 20, 'a'));
    message.mutable_hello()->mutable_agent()->append(
        size - message.ByteSizeLong(), 'a');
    EXPECT_EQ(message.ByteSizeLong(), size);
    stream->Write(message);
    v1::CoordinatorMessage ignored;
    EXPECT_FALSE(stream->Read(&ignored));
    return stream->Finish();
  };
  // Whole, and then not a name.
  EXPECT_THAT(answer(protocol::kMaxControlMessage).error_message(),
              HasSubstr("hello.agent"));
  EXPECT_THAT(answer(protocol::kMaxControlMessage + 1).error_message(),
              ::testing::Not(HasSubstr("hello.agent")));
  ExpectServes();
}

}  // namespace
}  // namespace pactrain::coordinator
