#include "agent/rpc/coordinator_client.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log_capture.h"
#include "base/mutex.h"
#include "base/rpc/credentials.h"
#include "base/status_matchers.h"
#include "base/tls/test_certs.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "protocol/limits.h"
#include "protocol/proto_convert.h"
#include "protocol/test_messages.h"

namespace pactrain::agent {
namespace {

using ::testing::HasSubstr;

absl::Status TakeAnybody(const std::vector<std::string>&) {
  return absl::OkStatus();
}

// Answers a hello with `welcome`, then keeps what comes until the stream
// breaks.
class FakeCoordinator : public v1::Coordinator::Service {
 public:
  explicit FakeCoordinator(protocol::Welcome welcome, int port = 0,
                           grpc::Status refusal = grpc::Status::OK,
                           const base::TlsFiles& tls = {})
      : welcome_(std::move(welcome)), refusal_(std::move(refusal)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port),
                             base::MakeServerCredentials(tls, &TakeAnybody),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override {
    server_->Shutdown(std::chrono::system_clock::now());
  }

  int port() const { return port_; }
  // Said after the Welcome; to be set before anybody connects.
  protocol::HistoryMark more;
  std::vector<protocol::AgentMessage> received() {
    base::MutexLock lock(&mutex_);
    return received_;
  }

 private:
  grpc::Status AgentStream(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>*
          stream) override {
    v1::AgentMessage message;
    while (stream->Read(&message)) {
      auto parsed = protocol::FromProto(message);
      if (!parsed.ok()) return grpc::Status(grpc::INVALID_ARGUMENT, "bad");
      if (!refusal_.ok()) return refusal_;
      const bool hello = std::holds_alternative<protocol::AgentHello>(*parsed);
      {  // Before the answer, after which a test reads it.
        base::MutexLock lock(&mutex_);
        received_.push_back(*std::move(parsed));
      }
      if (hello) stream->Write(protocol::ToProto(welcome_));
      if (hello && !more.empty()) {
        stream->Write(protocol::ToProto(protocol::CoordinatorMessage(more)));
      }
    }
    return grpc::Status::OK;
  }

  const protocol::Welcome welcome_;
  const grpc::Status refusal_;  // Of every hello.
  int port_ = 0;
  base::Mutex mutex_;
  std::vector<protocol::AgentMessage> received_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

const grpc::Status kTaken(grpc::ALREADY_EXISTS, "another live agent");

class CoordinatorClientTest : public ::testing::Test,
                              protected CoordinatorEvents {
 protected:
  static protocol::Welcome WelcomeOf(const std::string& cluster,
                                     uint64_t term) {
    return {cluster, term, absl::Milliseconds(10), MarkOf(term)};
  }
  // As if each term had written one batch more.
  static protocol::HistoryMark MarkOf(uint64_t term) {
    return {{8, 8}, term, {}, 0, term, SomeProof()};
  }
  static base::Secret SomeProof() {
    base::Secret proof;
    proof.bytes.fill(7);
    return proof;
  }
  void Connect(int port,
               absl::Duration connect_timeout = absl::InfiniteDuration(),
               absl::Duration name_timeout = absl::InfiniteDuration()) {
    CoordinatorClient::Options options;
    options.connect_timeout = connect_timeout;
    options.name_timeout = name_timeout;
    options.address = absl::StrCat("127.0.0.1:", port);
    options.tls = tls_;
    options.hello.agent = "a";
    options.hello.site = "s";
    options.hello.incarnation = {1, 2};
    options.hello.data_address = "127.0.0.1:1";
    options.hello.version = "0.1.0";
    options.first_backoff = absl::Milliseconds(5);
    options.max_backoff = absl::Milliseconds(50);
    client_ = std::make_unique<CoordinatorClient>(
        io_, options, static_cast<CoordinatorEvents*>(this));
  }
  bool RunUntil(const std::function<bool()>& done) {
    const absl::Duration end = base::MonotonicNow() + absl::Minutes(2);
    while (!done()) {
      if (base::MonotonicNow() > end) return false;
      io_.run_one_for(std::chrono::milliseconds(10));
    }
    return true;
  }
  std::string LastReason() const {
    return reasons_.empty() ? "" : reasons_.back();
  }

  void OnCoordinatorConnected() override { ++connected_; }
  void OnCoordinatorMessage(
      const protocol::CoordinatorMessage& message) override {
    messages_.push_back(message);
  }
  void OnCoordinatorDisconnected(const std::string& reason) override {
    reasons_.push_back(reason);
  }
  void OnCoordinatorGivenUp(const std::string& reason) override {
    given_up_ = reason;
  }
  void OnAuditHeads(const protocol::KeptHeads& kept) override { kept_ = kept; }

  base::TlsFiles tls_;
  asio::io_context io_;
  int connected_ = 0;
  std::vector<protocol::CoordinatorMessage> messages_;
  std::vector<std::string> reasons_;
  std::string given_up_;
  protocol::KeptHeads kept_;
  std::unique_ptr<CoordinatorClient> client_;
};

TEST_F(CoordinatorClientTest, SaysHelloFirstThenMessagesAndHeartbeats) {
  FakeCoordinator coordinator(WelcomeOf(std::string(32, 'a'), 3));
  Connect(coordinator.port());
  ASSERT_TRUE(RunUntil([&] { return messages_.size() == 1; }));
  EXPECT_EQ(connected_, 1);
  EXPECT_EQ(client_->cluster_id(), std::string(32, 'a'));
  client_->Send(protocol::LocalTrainers{{"job", 0}, 1, {}, {}, {}});
  ASSERT_TRUE(RunUntil([&] { return coordinator.received().size() >= 4; }));
  const auto received = coordinator.received();
  EXPECT_EQ(std::get<protocol::AgentHello>(received[0]).agent, "a");
  int heartbeats = 0, locals = 0;
  for (const auto& message : received) {
    heartbeats += std::holds_alternative<protocol::Heartbeat>(message);
    locals += std::holds_alternative<protocol::LocalTrainers>(message);
  }
  EXPECT_GE(heartbeats, 1);
  EXPECT_EQ(locals, 1);
}

TEST_F(CoordinatorClientTest, MoreThanIsTakenWaitsAndTheNewestIsTold) {
  FakeCoordinator coordinator(WelcomeOf(std::string(32, 'a'), 3));
  Connect(coordinator.port());
  ASSERT_TRUE(RunUntil([&] { return connected_ == 1; }));
  // At 4 KiB and some each, more than may be told at once.
  constexpr uint64_t kWords = protocol::kMaxBytesAtOnce / 4096;
  for (uint64_t revision = 1; revision <= kWords; ++revision) {
    client_->Send(protocol::LocalTrainers{{"job", 0}, revision, {}, {}, {}});
  }
  uint64_t told = 0, newest = 0;
  ASSERT_TRUE(RunUntil([&] {
    told = 0;
    for (const auto& message : coordinator.received()) {
      const auto* local = std::get_if<protocol::LocalTrainers>(&message);
      if (local == nullptr) continue;
      ++told;
      newest = local->revision;
    }
    return newest == kWords;
  }));
  EXPECT_LT(told, kWords);
  EXPECT_EQ(connected_, 1);
}

TEST_F(CoordinatorClientTest,
       ACoordinatorOfTheReleaseBeforeIsToldWhatHasChanged) {
  protocol::Welcome welcome = WelcomeOf(std::string(32, 'a'), 3);
  welcome.takes_local_trainers = false;
  FakeCoordinator coordinator(welcome);
  Connect(coordinator.port());
  ASSERT_TRUE(RunUntil([&] { return connected_ == 1; }));
  auto local = std::get<protocol::LocalTrainers>(protocol::AgentMessages()[2]);
  local.report.reset();
  const protocol::LocalTrainers all = local;
  local.left.clear();
  client_->Send(local);
  client_->Send(all);
  std::vector<protocol::LocalTrainers> said;
  ASSERT_TRUE(RunUntil([&] {
    said.clear();
    for (const auto& message : coordinator.received()) {
      const auto* one = std::get_if<protocol::LocalTrainers>(&message);
      if (one != nullptr) said.push_back(*one);
    }
    return said.size() >= 3;
  }));
  const protocol::GroupId& group = all.group;
  EXPECT_EQ(said, (std::vector<protocol::LocalTrainers>{
                      {group, 0, all.here, {}, {}},
                      {group, 0, {}, {}, all.votes},
                      {group, 0, {}, all.left, {}}}));
}

TEST_F(CoordinatorClientTest, ReconnectsWithThePinnedClusterAndItsHistory) {
  auto coordinator =
      std::make_unique<FakeCoordinator>(WelcomeOf(std::string(32, 'a'), 3));
  const int port = coordinator->port();
  Connect(port);
  ASSERT_TRUE(RunUntil([&] { return connected_ == 1; }));
  coordinator.reset();
  ASSERT_TRUE(RunUntil([&] { return !reasons_.empty(); }));
  EXPECT_FALSE(client_->connected());
  EXPECT_THAT(LastReason(),
              HasSubstr(absl::StrCat("coordinator 127.0.0.1:", port,
                                     " cannot be reached (")));
  FakeCoordinator next(WelcomeOf(std::string(32, 'a'), 4), port);
  ASSERT_TRUE(RunUntil([&] { return connected_ == 2; }));
  const auto hello = std::get<protocol::AgentHello>(next.received()[0]);
  EXPECT_EQ(hello.cluster_id, std::string(32, 'a'));
  EXPECT_EQ(hello.history, MarkOf(3));
}

TEST_F(CoordinatorClientTest, ACoordinatorOfAnotherReleaseIsLoggedOnce) {
  base::LogCapture log;
  protocol::Welcome welcome = WelcomeOf(std::string(32, 'a'), 3);
  welcome.version = "0.2.0";
  auto coordinator = std::make_unique<FakeCoordinator>(welcome);
  const int port = coordinator->port();
  Connect(port);
  ASSERT_TRUE(RunUntil([&] { return connected_ == 1; }));
  EXPECT_TRUE(log.Has(
      "the coordinator is of release 0.2.0, this agent of release 0.1.0: "
      "neighbours work together; finish the upgrade"));
  // Neither the same one again, nor one of the agent's own.
  for (const char* next : {"0.2.0", "0.1.0"}) {
    const int before = connected_;
    coordinator.reset();
    welcome.version = next;
    coordinator = std::make_unique<FakeCoordinator>(welcome, port);
    ASSERT_TRUE(RunUntil([&] { return connected_ > before; }));
    EXPECT_EQ(log.Count("is of release"), 1) << next;
  }
}

TEST_F(CoordinatorClientTest, KeepsWhereTheAuditLogEndedAndSaysSo) {
  const auto head_of = [](uint64_t term, uint64_t number) {
    return protocol::AuditHead{
        term, number, std::string(protocol::kAuditHashBytes, 'h'), SomeProof()};
  };
  auto coordinator =
      std::make_unique<FakeCoordinator>(WelcomeOf(std::string(32, 'a'), 3));
  const int port = coordinator->port();
  coordinator->more = MarkOf(3);
  coordinator->more.audit = head_of(3, 57);
  Connect(port);
  const auto said = [&] {
    for (const auto& message : coordinator->received()) {
      const auto* beat = std::get_if<protocol::Heartbeat>(&message);
      if (beat != nullptr && beat->audit == head_of(3, 57)) return true;
    }
    return false;
  };
  ASSERT_TRUE(RunUntil(said));
  EXPECT_EQ(kept_.agent, "a");
  EXPECT_EQ(kept_.cluster, std::string(32, 'a'));
  coordinator.reset();
  ASSERT_TRUE(RunUntil([&] { return !reasons_.empty(); }));
  // A log that was cut meanwhile does not make it forget.
  protocol::Welcome welcome = WelcomeOf(std::string(32, 'a'), 4);
  welcome.history.audit = head_of(4, 41);
  FakeCoordinator next(welcome, port);
  ASSERT_TRUE(RunUntil([&] { return connected_ == 2; }));
  const auto hello = std::get<protocol::AgentHello>(next.received()[0]);
  EXPECT_EQ(hello.audit, std::vector<protocol::AuditHead>{head_of(3, 57)});
  EXPECT_EQ(kept_.heads,
            (std::vector<protocol::AuditHead>{head_of(3, 57), head_of(4, 41)}));
}

TEST_F(CoordinatorClientTest, RemembersTheNewestHistoryThatItWasTold) {
  auto coordinator =
      std::make_unique<FakeCoordinator>(WelcomeOf(std::string(32, 'a'), 3));
  const int port = coordinator->port();
  coordinator->more = MarkOf(9);
  Connect(port);
  ASSERT_TRUE(RunUntil([&] { return coordinator->received().size() >= 3; }));
  coordinator.reset();
  ASSERT_TRUE(RunUntil([&] { return !reasons_.empty(); }));
  FakeCoordinator next(WelcomeOf(std::string(32, 'a'), 9), port);
  ASSERT_TRUE(RunUntil([&] { return connected_ == 2; }));
  const auto hello = std::get<protocol::AgentHello>(next.received()[0]);
  EXPECT_EQ(hello.history, MarkOf(9));
  for (const auto& message : messages_) {
    EXPECT_TRUE(std::holds_alternative<protocol::Welcome>(message));
  }
}

TEST_F(CoordinatorClientTest, AnotherClusterIsRefused) {
  auto coordinator =
      std::make_unique<FakeCoordinator>(WelcomeOf(std::string(32, 'a'), 3));
  const int port = coordinator->port();
  Connect(port);
  ASSERT_TRUE(RunUntil([&] { return connected_ == 1; }));
  coordinator.reset();
  FakeCoordinator other(WelcomeOf(std::string(32, 'b'), 9), port);
  EXPECT_TRUE(RunUntil([&] {
    return LastReason().find("this agent belongs to") != std::string::npos;
  }));
  EXPECT_EQ(connected_, 1);
}

TEST_F(CoordinatorClientTest, AnOldCoordinatorIsRefused) {
  auto coordinator =
      std::make_unique<FakeCoordinator>(WelcomeOf(std::string(32, 'a'), 3));
  const int port = coordinator->port();
  Connect(port);
  ASSERT_TRUE(RunUntil([&] { return connected_ == 1; }));
  coordinator.reset();
  FakeCoordinator old(WelcomeOf(std::string(32, 'a'), 2), port);
  EXPECT_TRUE(RunUntil([&] {
    return LastReason().find(
               "its state directory is an older copy: it holds "
               "2 batches of records where 3 were told before") !=
           std::string::npos;
  }));
  EXPECT_EQ(connected_, 1);
}

TEST_F(CoordinatorClientTest, UnreachableCoordinatorIsSaidWithItsAddress) {
  Connect(1);
  ASSERT_TRUE(RunUntil([&] { return !reasons_.empty(); }));
  EXPECT_THAT(LastReason(),
              HasSubstr("coordinator 127.0.0.1:1 cannot be reached ("));
}

TEST_F(CoordinatorClientTest, WithoutAKeyItIsToldThatTheOtherSpeaksTls) {
  FakeCoordinator coordinator(
      WelcomeOf(std::string(32, 'a'), 3), 0, grpc::Status::OK,
      base::IssueByJobKey('1', "spiffe://pactrain/coordinator"));
  Connect(coordinator.port());
  ASSERT_TRUE(RunUntil([&] { return !reasons_.empty(); }));
  EXPECT_THAT(LastReason(), HasSubstr("cannot be reached (it hung up on plain "
                                      "text: most likely it speaks TLS); give "
                                      "--job-key-file (or PACTRAIN_JOB_KEY)"));
}

TEST_F(CoordinatorClientTest, WithAnotherKeyItIsToldThatTheKeysDiffer) {
  FakeCoordinator coordinator(
      WelcomeOf(std::string(32, 'a'), 3), 0, grpc::Status::OK,
      base::IssueByJobKey('1', "spiffe://pactrain/coordinator"));
  tls_ = base::IssueByJobKey('2', "spiffe://pactrain/agent/a");
  Connect(coordinator.port());
  ASSERT_TRUE(RunUntil([&] { return !reasons_.empty(); }));
  EXPECT_THAT(LastReason(), HasSubstr("the job keys (or CAs) differ); give the "
                                      "key file"));
}

TEST_F(CoordinatorClientTest, TheFirstConnectionIsGivenUpAfterItsTimeout) {
  Connect(1, absl::Milliseconds(50));
  ASSERT_TRUE(RunUntil([&] { return !given_up_.empty(); }));
  EXPECT_THAT(given_up_,
              HasSubstr("coordinator 127.0.0.1:1 cannot be reached ("));
}

TEST_F(CoordinatorClientTest, ARefusalOfTheFirstHelloIsFinal) {
  FakeCoordinator coordinator(
      WelcomeOf(std::string(32, 'a'), 3), 0,
      grpc::Status(grpc::FAILED_PRECONDITION, "no link names its site"));
  Connect(coordinator.port());
  ASSERT_TRUE(RunUntil([&] { return !given_up_.empty(); }));
  EXPECT_THAT(given_up_,
              HasSubstr("refused this agent (no link names its site)"));
  EXPECT_TRUE(reasons_.empty());
}

TEST_F(CoordinatorClientTest, ATakenNameIsWaitedFor) {
  const protocol::Welcome welcome = WelcomeOf(std::string(32, 'a'), 3);
  auto taken = std::make_unique<FakeCoordinator>(welcome, 0, kTaken);
  const int port = taken->port();
  Connect(port);
  ASSERT_TRUE(RunUntil([&] { return !reasons_.empty(); }));
  EXPECT_THAT(LastReason(), HasSubstr("another live agent"));
  taken.reset();
  FakeCoordinator free(welcome, port);
  ASSERT_TRUE(RunUntil([&] { return connected_ == 1; }));
  EXPECT_EQ(given_up_, "");
}

TEST_F(CoordinatorClientTest, ATakenNameIsFinalAfterItsTimeout) {
  FakeCoordinator taken(WelcomeOf(std::string(32, 'a'), 3), 0, kTaken);
  Connect(taken.port(), absl::InfiniteDuration(), absl::Milliseconds(20));
  ASSERT_TRUE(RunUntil([&] { return !given_up_.empty(); }));
  EXPECT_THAT(given_up_, HasSubstr("another live agent"));
}

}  // namespace
}  // namespace pactrain::agent
