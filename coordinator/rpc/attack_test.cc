// Who has no certificate, or a bad will, at the port of a real coordinator: it
// is refused or bounded, and everybody else is served as before.
#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/test_descriptors.h"
#include "coordinator/rpc/test_attacks.h"
#include "gmock/gmock.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;

using AttackTest = AttackFixture;

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

TEST_F(AttackTest, sec_limits_CompressedMessages) {
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    const auto context = MakeContext();
    context->set_compression_algorithm(algorithm);
    const auto stub = v1::Coordinator::NewStub(
        ChannelOf(ca_.Issue("a", "spiffe://pactrain/agent/a")));
    const auto stream = stub->AgentStream(context.get());
    v1::AgentMessage message;
    message.mutable_hello()->set_agent(std::string(60'000'000, 'a'));
    stream->Write(message);
    v1::CoordinatorMessage ignored;
    EXPECT_FALSE(stream->Read(&ignored));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  ExpectServes();
}

}  // namespace
}  // namespace pactrain::coordinator
