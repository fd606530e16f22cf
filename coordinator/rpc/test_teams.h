// Agents of two teams at a coordinator with certificates and a policy file, for
// tests.
#ifndef PACTRAIN_COORDINATOR_RPC_TEST_TEAMS_H_
#define PACTRAIN_COORDINATOR_RPC_TEST_TEAMS_H_

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log_capture.h"
#include "base/tls/test_certs.h"
#include "coordinator/rpc/test_server.h"
#include "protocol/proto_convert.h"
#include "protocol/test_messages.h"

namespace pactrain::coordinator {

// An agent's stream with certificate and hello.
class TestAgent {
 public:
  TestAgent(const std::shared_ptr<grpc::Channel>& channel,
            const std::string& name,
            std::unique_ptr<grpc::ClientContext> context)
      : stub_(v1::Coordinator::NewStub(channel)),
        context_(std::move(context)),
        stream_(stub_->AgentStream(context_.get())) {
    Say(protocol::AgentHello{name, base::DigestOf(name), name, "127.0.0.1:9",
                             "t", ""});
  }
  ~TestAgent() { context_->TryCancel(); }

  void Say(const protocol::AgentMessage& message) {
    stream_->Write(protocol::ToProto(message));
  }
  template <typename T>
  void SayOfTrainers(const T& what) {
    Say(local_.With(what));
  }
  // The next message of this kind; nothing: the stream ended.
  template <typename Message>
  std::optional<Message> Await() {
    v1::CoordinatorMessage answer;
    while (stream_->Read(&answer)) {
      const auto message = protocol::FromProto(answer);
      if (!message.ok()) return std::nullopt;
      if (const auto* found = std::get_if<Message>(&*message)) return *found;
    }
    return std::nullopt;
  }
  grpc::Status Finish() {
    v1::CoordinatorMessage answer;
    while (stream_->Read(&answer)) {
    }
    return stream_->Finish();
  }

 private:
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<
      grpc::ClientReaderWriter<v1::AgentMessage, v1::CoordinatorMessage>>
      stream_;
  protocol::TrainersOfAgent local_;
};

inline protocol::TrainerJoined Joined(const std::string& job, uint32_t rank,
                                      uint32_t world_size,
                                      uint64_t generation = 0) {
  protocol::TrainerJoined joined;
  joined.group = {job, 0};
  joined.trainer.rank = rank;
  joined.trainer.world_size = world_size;
  joined.trainer.launch = "l";
  joined.trainer.elements = 1;
  joined.trainer.attach_id = base::DigestOf(job + std::to_string(rank));
  joined.trainer.model_digest = base::DigestOf("model");
  joined.generation = generation;
  return joined;
}

// Of job vision with ranks that come and go.
inline protocol::TrainerJoined Elastic(uint32_t rank, uint32_t world_size = 2) {
  protocol::TrainerJoined joined = Joined("vision", rank, world_size);
  joined.trainer.on_shrink = protocol::OnShrink::kPause;
  return joined;
}

class TeamsFixture : public ServerFixture {
 protected:
  // Two teams: agents a and b run vision, agent x runs text.
  void SetUp() override {
    // They ask until the next tick, as fast as they can.
    budgets_.calls = {1'000'000, 1e6};
    SetGrants(lists_);
    Start(OwnFiles());
  }
  // What the coordinator shows.
  virtual base::TlsFiles OwnFiles() const {
    return ca_.Issue("coordinator", "spiffe://pactrain/coordinator");
  }
  std::shared_ptr<grpc::Channel> As(const std::string& who) const {
    return ChannelOf(ca_.Issue("client", "spiffe://pactrain/" + who));
  }
  std::unique_ptr<TestAgent> Agent(const std::string& name) const {
    return std::make_unique<TestAgent>(As("agent/" + name), name,
                                       MakeContext());
  }
  // Job vision with one rank at a and one at b.
  void Form() {
    a_ = Agent("a");
    b_ = Agent("b");
    a_->SayOfTrainers(Joined("vision", 0, 2));
    b_->SayOfTrainers(Joined("vision", 1, 2));
    ASSERT_TRUE(a_->Await<protocol::StartGeneration>());
    ASSERT_TRUE(b_->Await<protocol::StartGeneration>());
  }
  std::vector<std::string> JobsSeenBy(const std::string& who) const {
    v1::ListJobsResponse jobs;
    const grpc::Status status =
        v1::Admin::NewStub(As(who))->ListJobs(MakeContext().get(), {}, &jobs);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::string> names;
    for (const v1::JobState& job : jobs.jobs()) {
      names.push_back(job.group().job());
    }
    return names;
  }
  GroupSnapshot Vision() const {
    for (GroupSnapshot& group : driver_->Snapshot().groups) {
      if (group.group.job == "vision") return group;
    }
    return {};
  }
  // Job vision's generation has ended, soon.
  bool EventuallyFailed() const {
    const absl::Duration end = base::MonotonicNow() + absl::Minutes(1);
    while (Vision().phase != GroupPhase::kFailed) {
      if (base::MonotonicNow() > end) return false;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return true;
  }
  std::string Audit() {
    std::string text;
    const auto audit = driver_->ReadAudit(0);
    for (const protocol::AuditLine& line : audit->lines) {
      absl::StrAppend(&text, line.event.kind, "|", line.event.caller.who, "|",
                      line.event.job, "|", line.event.why, "\n");
    }
    return text;
  }

  Grants::Lists lists_ = {
      .run = {"agent/a=vision", "agent/b=vision", "agent/x=text"},
      .see = {"reader/ann=vision", "reader/xen=text", "reader/all=*"},
      .change = {"operator/ann=vision", "operator/xen=text"}};
  base::LogCapture log_;
  const base::TestCa ca_{folder_};
  std::unique_ptr<TestAgent> a_, b_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_TEST_TEAMS_H_
