// The server as agents and operators meet it: real gRPC on loopback, port 0.
#include "coordinator/rpc/server.h"

#include <grpcpp/generic/generic_stub.h>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/rpc/test_server.h"
#include "gtest/gtest.h"
#include "protocol/proto_convert.h"
#include "protocol/test_messages.h"

namespace pactrain::coordinator {
namespace {

using protocol::AgentMessage;
using protocol::CoordinatorMessage;
using ::testing::HasSubstr;

// Every call ends by then, whatever is broken.
std::chrono::system_clock::time_point Deadline() {
  return std::chrono::system_clock::now() + std::chrono::minutes(2);
}

// One agent's stream, read and written in turns.
class AgentClient {
 public:
  explicit AgentClient(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Coordinator::NewStub(channel)) {
    context_.set_deadline(Deadline());
    stream_ = stub_->AgentStream(&context_);
  }
  ~AgentClient() { context_.TryCancel(); }

  void Say(const AgentMessage& message) {
    stream_->Write(protocol::ToProto(message));
  }
  template <typename T>
  void SayOfTrainers(const T& what) {
    Say(local_.With(what));
  }
  void SayRaw(const v1::AgentMessage& message) { stream_->Write(message); }
  // Reads on until a message of this kind. Nothing: the stream ended first.
  template <typename T>
  std::optional<T> WaitFor() {
    v1::CoordinatorMessage proto;
    while (stream_->Read(&proto)) {
      auto message = protocol::FromProto(proto);
      EXPECT_OK(message);
      if (const T* wanted = std::get_if<T>(&*message)) return *wanted;
    }
    return std::nullopt;
  }
  grpc::Status Finish() { return stream_->Finish(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::AgentMessage, v1::CoordinatorMessage>>
      stream_;
  protocol::TrainersOfAgent local_;
};

class ServerTest : public ServerFixture {
 protected:
  void SetUp() override { StartAnew(); }
  void StartAnew() {
    Start();
    channel_ = ChannelOf();
  }
  void Hello(AgentClient& agent, const std::string& name) {
    agent.Say(protocol::AgentHello{name, base::DigestOf(name),
                                   absl::StrCat("site-", name), "127.0.0.1:9",
                                   "t", ""});
  }
  void Join(AgentClient& agent, uint32_t rank, uint64_t generation = 0) {
    agent.SayOfTrainers(protocol::TrainerJoined{
        kGroup,
        {rank, 2, {1, rank + 1}, "run-1", {2, 2}, "a network", 10, 0},
        generation});
  }
  void Vote(AgentClient& agent, uint32_t rank) {
    agent.SayOfTrainers(protocol::MaskVote{
        kGroup, 1, rank, {3, 3}, {4, 4}, 1, 1, true, 30, 100});
  }

  const protocol::GroupId kGroup{"job", 0};
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ServerTest, CallsAreCountedByMethodAndCode) {
  const auto stub = v1::Admin::NewStub(channel_);
  for (const char* job : {"", "unknown"}) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    v1::GetJobRequest request;
    request.mutable_group()->set_job(job);
    v1::GetJobResponse response;
    EXPECT_FALSE(stub->GetJob(&context, request, &response).ok());
  }
  server_->Stop();  // Calls end on its threads.
  const base::RpcCounts calls = server_->calls();
  const base::RpcCount& asked =
      calls.at({"unary", "pactrain.v1.Admin", "GetJob"});
  EXPECT_EQ(asked.started, 2);
  uint64_t handled = 0;
  for (const uint64_t count : asked.handled) handled += count;
  EXPECT_EQ(handled, 2);
  EXPECT_GE(asked.handled[grpc::StatusCode::NOT_FOUND], 1);
  EXPECT_EQ(asked.handled[grpc::StatusCode::OK], 0);
  EXPECT_EQ(calls.at({"bidi_stream", "pactrain.v1.Coordinator", "AgentStream"})
                .started,
            0);
}

TEST_F(ServerTest, TwoAgentsGetAGenerationThenAPrepare) {
  AgentClient a(channel_), b(channel_);
  Hello(a, "a");
  ASSERT_TRUE(a.WaitFor<protocol::Welcome>().has_value());
  Join(a, 0);
  const auto waiting = a.WaitFor<protocol::GroupWaiting>();
  ASSERT_TRUE(waiting.has_value());
  EXPECT_EQ(waiting->reason, "waiting for rank 1 of 2");
  Hello(b, "b");
  Join(b, 1);
  const auto start = b.WaitFor<protocol::StartGeneration>();
  ASSERT_TRUE(start.has_value());
  EXPECT_EQ(start->generation.number, 1);
  EXPECT_TRUE(a.WaitFor<protocol::StartGeneration>().has_value());
  Vote(a, 0);
  Vote(b, 1);
  for (AgentClient* agent : {&a, &b}) {
    const auto prepare = agent->WaitFor<protocol::Prepare>();
    ASSERT_TRUE(prepare.has_value());
    EXPECT_EQ(prepare->decision.mode, protocol::Mode::kCompacted);
  }
}

TEST_F(ServerTest, ARestartTakesUpTheGenerationWithAHigherTerm) {
  {
    AgentClient a(channel_), b(channel_);
    Hello(a, "a");
    Hello(b, "b");
    Join(a, 0);
    Join(b, 1);
    ASSERT_TRUE(a.WaitFor<protocol::StartGeneration>().has_value());
    Stop();
    EXPECT_FALSE(a.WaitFor<protocol::EndGeneration>().has_value());
    EXPECT_EQ(a.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  StartAnew();
  AgentClient a(channel_);
  Hello(a, "a");
  const auto welcome = a.WaitFor<protocol::Welcome>();
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->term, 2);
  EXPECT_EQ(driver_->Snapshot().groups.at(0).phase, GroupPhase::kRunning);
}

TEST_F(ServerTest, AMalformedMessageEndsTheStreamNamingTheField) {
  AgentClient a(channel_);
  v1::AgentMessage hello;
  hello.mutable_hello()->set_agent("Not A Name");
  a.SayRaw(hello);
  EXPECT_FALSE(a.WaitFor<protocol::Welcome>().has_value());
  const grpc::Status status = a.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("hello.agent"));
}

TEST_F(ServerTest, ARefusedHelloSaysWhy) {
  AgentClient a(channel_);
  a.Say(protocol::AgentHello{
      "a", {1, 1}, "x", "127.0.0.1:9", "t", std::string(32, 'f')});
  EXPECT_FALSE(a.WaitFor<protocol::Welcome>().has_value());
  const grpc::Status status = a.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("belongs to cluster"));
}

TEST_F(ServerTest, AnOversizedMessageIsRefused) {
  AgentClient a(channel_);
  v1::AgentMessage big;
  big.mutable_hello()->set_agent(std::string(2 << 20, 'a'));
  a.SayRaw(big);
  EXPECT_FALSE(a.WaitFor<protocol::Welcome>().has_value());
  EXPECT_FALSE(a.Finish().ok());
}

TEST_F(ServerTest, AdminShowsJobsAndNamesUnknownOnes) {
  AgentClient a(channel_);
  Hello(a, "a");
  Join(a, 0);
  ASSERT_TRUE(a.WaitFor<protocol::GroupWaiting>().has_value());
  const auto admin = v1::Admin::NewStub(channel_);
  v1::ListJobsResponse jobs;
  {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    ASSERT_TRUE(admin->ListJobs(&context, {}, &jobs).ok());
  }
  EXPECT_EQ(jobs.term(), 1);
  ASSERT_EQ(jobs.jobs_size(), 1);
  EXPECT_EQ(jobs.jobs(0).state(), "waiting");
  EXPECT_EQ(jobs.jobs(0).reason(), "waiting for rank 1 of 2");
  v1::GetJobRequest request;
  v1::GetJobResponse response;
  *request.mutable_group() = protocol::ToProto(kGroup);
  {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    ASSERT_TRUE(admin->GetJob(&context, request, &response).ok());
  }
  EXPECT_EQ(response.job().DebugString(), jobs.jobs(0).DebugString());
  request.mutable_group()->set_job("nobody");
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const grpc::Status status = admin->GetJob(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("'nobody'"));
}

TEST_F(ServerTest, AJobTellsHowFarItsMasksHaveSettledAndWhatMoved) {
  AgentClient a(channel_), b(channel_);
  Hello(a, "a");
  Hello(b, "b");
  Join(a, 0);
  Join(b, 1);
  ASSERT_TRUE(a.WaitFor<protocol::StartGeneration>().has_value());
  ASSERT_TRUE(b.WaitFor<protocol::StartGeneration>().has_value());
  Vote(a, 0);
  protocol::MaskVote vote{kGroup, 1, 1, {3, 3}, {4, 4}, 7, 10, true, 30, 100};
  vote.moved = "fc.weight 12 elements moved";
  vote.changed_step = 30;
  b.SayOfTrainers(vote);
  protocol::StepReport report;
  report.group = kGroup;
  report.generation = 1;
  report.committed_step = report.committed_count = 37;
  report.first_compacted_step = 21;
  b.Say(report);
  // Words of one agent come in order.
  const auto admin = v1::Admin::NewStub(channel_);
  v1::WatchJobRequest request;
  *request.mutable_group() = protocol::ToProto(kGroup);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto watch = admin->WatchJob(&context, request);
  v1::WatchJobResponse seen;
  do {
    ASSERT_TRUE(watch->Read(&seen));
  } while (!seen.job().has_first_compacted_step());
  const v1::MaskProgress& masks = seen.job().masks();
  EXPECT_EQ(masks.rank(), 1);
  EXPECT_EQ(masks.steps_unchanged(), 7);
  EXPECT_EQ(masks.settle_steps(), 10);
  EXPECT_EQ(masks.changed_step(), 30);
  EXPECT_EQ(masks.moved(), "fc.weight 12 elements moved");
  EXPECT_EQ(seen.job().first_compacted_step(), 21);
  context.TryCancel();
}

TEST_F(ServerTest, APinIsToldToAgentsAndShown) {
  AgentClient a(channel_), b(channel_);
  Hello(a, "a");
  Hello(b, "b");
  Join(a, 0);
  Join(b, 1);
  ASSERT_TRUE(a.WaitFor<protocol::StartGeneration>().has_value());
  const auto admin = v1::Admin::NewStub(channel_);
  const auto set = [&](v1::Mode mode, v1::Codec codec,
                       v1::SetPinResponse* response) {
    v1::SetPinRequest request;
    *request.mutable_group() = protocol::ToProto(kGroup);
    request.mutable_pin()->set_mode(mode);
    request.mutable_pin()->set_codec(codec);
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    return admin->SetPin(&context, request, response);
  };
  v1::SetPinResponse response;
  ASSERT_TRUE(set(v1::MODE_COMPACTED, v1::CODEC_BF16, &response).ok());
  EXPECT_THAT(response.job().reason(),
              HasSubstr("pinned to COMPACTED bf16, not in force before"));
  Vote(a, 0);
  Vote(b, 1);
  ASSERT_TRUE(a.WaitFor<protocol::Prepare>().has_value());
  ASSERT_TRUE(set(v1::MODE_TERNARY, v1::CODEC_LEVELS3, &response).ok());
  EXPECT_EQ(response.job().pin().codec(), v1::CODEC_LEVELS3);
  EXPECT_EQ(response.job().prepared().mode(), v1::MODE_TERNARY);
  const auto prepare = a.WaitFor<protocol::Prepare>();
  ASSERT_TRUE(prepare.has_value());
  EXPECT_EQ(prepare->decision.codec, protocol::Codec::kLevels3);
  const grpc::Status mixed = set(v1::MODE_FULL, v1::CODEC_LEVELS3, &response);
  EXPECT_EQ(mixed.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(mixed.error_message(), HasSubstr("FULL 3 levels"));
  const grpc::Status none =
      set(v1::MODE_UNSPECIFIED, v1::CODEC_FP32, &response);
  EXPECT_THAT(none.error_message(), HasSubstr("pin.mode is 0"));
}

TEST_F(ServerTest, AWatcherSeesTheStateChange) {
  AgentClient a(channel_);
  Hello(a, "a");
  Join(a, 0);
  ASSERT_TRUE(a.WaitFor<protocol::GroupWaiting>().has_value());
  const auto admin = v1::Admin::NewStub(channel_);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  v1::WatchJobRequest request;
  *request.mutable_group() = protocol::ToProto(kGroup);
  const auto watch = admin->WatchJob(&context, request);
  v1::WatchJobResponse state;
  ASSERT_TRUE(watch->Read(&state));
  EXPECT_EQ(state.job().state(), "waiting");
  AgentClient b(channel_);
  Hello(b, "b");
  Join(b, 1);
  while (state.job().state() == "waiting") ASSERT_TRUE(watch->Read(&state));
  EXPECT_EQ(state.job().state(), "running");
  EXPECT_EQ(state.job().generation().number(), 1);
  server_->Stop();
  while (watch->Read(&state)) {
  }
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServerTest, AWatchOfAnUnknownJobIsNotFound) {
  const auto admin = v1::Admin::NewStub(channel_);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  v1::WatchJobRequest request;
  request.mutable_group()->set_job("nobody");
  const auto watch = admin->WatchJob(&context, request);
  v1::WatchJobResponse state;
  EXPECT_FALSE(watch->Read(&state));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServerTest, ManyAgentsAtOnceAreServed) {
  std::vector<std::unique_ptr<AgentClient>> agents;
  // Each with a connection of its own, as agents have.
  for (int i = 0; i < 80; ++i) {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    agents.push_back(std::make_unique<AgentClient>(
        grpc::CreateCustomChannel(server_->address().ToString(),
                                  grpc::InsecureChannelCredentials(), own)));
    Hello(*agents.back(), absl::StrCat("agent-", i));
  }
  for (auto& agent : agents) {
    EXPECT_TRUE(agent->WaitFor<protocol::Welcome>().has_value());
  }
  EXPECT_EQ(driver_->Snapshot().agents.size(), 80);
}

TEST_F(ServerTest, ATakenPortIsAnErrorThatNamesIt) {
  auto driver = Driver::Create({}, journal_.get());
  ASSERT_OK(driver);
  EXPECT_THAT(Server::Start(server_->address(), {}, driver->get()),
              base::StatusIs(absl::StatusCode::kUnavailable,
                             HasSubstr(server_->address().ToString())));
}

TEST_F(ServerTest, HealthIsServed) {
  // The health service by its generic name, so that no stub is needed.
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  grpc::CompletionQueue queue;
  grpc::TemplatedGenericStub<v1::ListJobsRequest, v1::ListJobsRequest> stub(
      channel_);
  v1::ListJobsRequest response;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                    {}, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace pactrain::coordinator
