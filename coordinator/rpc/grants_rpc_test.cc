// Whose agents may run which jobs, and who sees and changes them, through the
// server's calls with certificates.
#include <fstream>
#include <sstream>

#include "base/log_capture.h"
#include "base/status_matchers.h"
#include "base/tls/certificate_facts.h"
#include "base/tls/mac.h"
#include "base/tls/test_certs.h"
#include "coordinator/rpc/test_server.h"
#include "protocol/proto_convert.h"
#include "protocol/seat_claim.h"
#include "protocol/test_messages.h"

namespace pactrain::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

protocol::TrainerJoined Joined(const std::string& job, uint32_t rank,
                               uint32_t world_size, uint64_t generation = 0) {
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
protocol::TrainerJoined Elastic(uint32_t rank, uint32_t world_size = 2) {
  protocol::TrainerJoined joined = Joined("vision", rank, world_size);
  joined.trainer.on_shrink = protocol::OnShrink::kPause;
  return joined;
}

class GrantsRpcTest : public ServerFixture {
 protected:
  // Two teams: agents a and b run vision, agent x runs text.
  void SetUp() override {
    // They ask until the next tick, as fast as they can.
    budgets_.calls = {1'000'000, 1e6};
    SetGrants(lists_);
    Start(ca_.Issue("coordinator", "spiffe://pactrain/coordinator"));
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

// Attack 2: a stranger's agent with a certificate of its own takes part.
TEST_F(GrantsRpcTest, sec_AnotherTeamsAgentIsNotLetIntoAJob) {
  Form();
  const auto x = Agent("x");
  x->SayOfTrainers(Joined("vision", 2, 3));
  const auto refused = x->Await<protocol::JoinRefused>();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->reason,
              AllOf(HasSubstr("spiffe://pactrain/agent/x may not run job "
                              "'vision': no rule of run in policy.yaml"),
                    HasSubstr("\"agent/x=vision\"")));
  EXPECT_EQ(Vision().phase, GroupPhase::kRunning);
  EXPECT_EQ(Vision().generation->number, 1u);
  EXPECT_THAT(Audit(),
              HasSubstr("call refused|spiffe://pactrain/agent/x|vision|"
                        "spiffe://pactrain/agent/x may not run"));
  EXPECT_TRUE(log_.Has("refused LocalTrainers from 127.0.0.1"));
}

// Attack 1: it says that it was of the job's generation.
TEST_F(GrantsRpcTest, sec_AClaimOfAnotherTeamsGenerationIsRefused) {
  Form();
  const auto x = Agent("x");
  auto claim = Joined("vision", 0, 2);
  claim.trainer.last_attach_id = Vision().generation->members[0].attach_ids[0];
  claim.trainer.lineage = Vision().generation->lineage;
  x->SayOfTrainers(claim);
  ASSERT_TRUE(x->Await<protocol::JoinRefused>());
  x->SayOfTrainers(Joined("vision", 0, 2, 1));
  ASSERT_TRUE(x->Await<protocol::JoinRefused>());
  protocol::TrainerLeft left;
  left.group = {"vision", 0};
  left.attach_id = Joined("vision", 0, 2).trainer.attach_id;
  left.reason = "killed";
  x->SayOfTrainers(left);
  // What it may do comes after all of that.
  x->SayOfTrainers(Joined("text", 0, 1));
  ASSERT_TRUE(x->Await<protocol::StartGeneration>());
  EXPECT_EQ(Vision().phase, GroupPhase::kRunning);
  EXPECT_EQ(Vision().generation->number, 1u);
}

// Attack 1 by an agent that may run the job: grants do not stop it.
TEST_F(GrantsRpcTest, sec_AClaimOfASeatThatItNeverHadIsRefused) {
  lists_.run.push_back("agent/x=vision");
  Stop();
  SetUp();
  a_ = Agent("a");
  b_ = Agent("b");
  a_->SayOfTrainers(Elastic(0));
  b_->SayOfTrainers(Elastic(1));
  const auto told = a_->Await<protocol::StartGeneration>();
  ASSERT_TRUE(told);
  ASSERT_EQ(told->seats.size(), 1u);
  const auto others = b_->Await<protocol::StartGeneration>();
  ASSERT_TRUE(others);
  ASSERT_FALSE(others->seats[0] == told->seats[0]);
  const protocol::Generation generation = told->generation;

  const auto x = Agent("x");
  protocol::TrainerJoined claim = Elastic(0);
  claim.trainer.attach_id = {4, 4};
  claim.trainer.model_digest = base::DigestOf("another one");
  claim.trainer.lineage = {generation.lineage.id, 1000};
  claim.trainer.resume_step = 1000;
  claim.trainer.last_generation = 1;
  claim.trainer.last_attach_id = {4, 3};
  x->SayOfTrainers(claim);
  auto refused = x->Await<protocol::JoinRefused>();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->reason,
              HasSubstr("rank 0 (agent 'x', site 'x') claims a state of"));
  // All that other members know of a seat, and a proof of what is no secret.
  claim.trainer.attach_id = {generation.members[0].attach_ids[0].hi, 5};
  claim.trainer.last_attach_id = generation.members[0].attach_ids[0];
  claim.trainer.proof = base::ComputeMac(
      told->key, protocol::FieldsOfClaim(claim.group, claim.trainer));
  x->SayOfTrainers(claim);
  do {  // The first one is said again with it.
    refused = x->Await<protocol::JoinRefused>();
    ASSERT_TRUE(refused);
  } while (refused->attach_id != claim.trainer.attach_id);
  EXPECT_THAT(refused->reason, HasSubstr("proof is not of that seat's secret"));
  EXPECT_EQ(Vision().phase, GroupPhase::kRunning);
  EXPECT_EQ(Vision().generation->number, 1u);
  EXPECT_THAT(Audit(), HasSubstr("join refused|spiffe://pactrain/agent/x|"
                                 "vision|rank 0 (agent 'x', site 'x') claims"));

  // Who had the seat is believed.
  protocol::TrainerJoined back = Elastic(0);
  back.trainer.last_attach_id = back.trainer.attach_id;
  ++back.trainer.attach_id.lo;
  back.trainer.last_generation = 1;
  back.trainer.lineage = {generation.lineage.id, 7};
  back.trainer.resume_step = 7;
  back.trainer.proof = base::ComputeMac(
      told->seats[0], protocol::FieldsOfClaim(back.group, back.trainer));
  a_->SayOfTrainers(back);
  EXPECT_TRUE(b_->Await<protocol::EndGeneration>());
}

// A member proves its seat, and says of its state what is not so.
// Ranks 0, 1 and 2 of a job that ran, at agents a, b and x.
class MemberRpcTest : public GrantsRpcTest {
 protected:
  void Run() {
    lists_.run.push_back("agent/x=vision");
    Stop();
    SetUp();
    for (const char* name : {"a", "b", "x"}) {
      agents_.push_back(Agent(name));
      const auto rank = static_cast<uint32_t>(agents_.size() - 1);
      agents_.back()->SayOfTrainers(Elastic(rank, 3));
    }
    for (const auto& agent : agents_) {
      const auto start = agent->Await<protocol::StartGeneration>();
      ASSERT_TRUE(start);
      told_.push_back(*start);
    }
  }
  // With the proof of its seat, after its generation ended.
  void ComeBack(uint32_t rank, uint64_t committed, uint64_t parameters) {
    protocol::TrainerJoined back = Elastic(rank, 3);
    agents_[rank]->SayOfTrainers(protocol::TrainerLeft{
        back.group, rank, back.trainer.attach_id, "its generation ended",
        /*generation_ended=*/true, /*may_return=*/true});
    back.trainer.last_attach_id = back.trainer.attach_id;
    ++back.trainer.attach_id.lo;
    back.trainer.last_generation = 1;
    back.trainer.lineage = {told_[rank].generation.lineage.id, committed};
    back.trainer.parameters = {parameters, 1};
    back.trainer.resume_step = committed;
    back.trainer.proof =
        base::ComputeMac(told_[rank].seats[0],
                         protocol::FieldsOfClaim(back.group, back.trainer));
    agents_[rank]->SayOfTrainers(back);
  }
  // Why x was refused, while the others went on without it after 7 steps.
  std::string WhyXIsOut() {
    const auto refused = agents_[2]->Await<protocol::JoinRefused>();
    if (!refused) return "it was not";
    const auto start = agents_[0]->Await<protocol::StartGeneration>();
    if (!start || start->generation.number != 2 ||
        start->generation.world_size != 2 ||
        start->generation.lineage.committed != 7) {
      return "the others did not go on";
    }
    EXPECT_THAT(Audit(), HasSubstr("join refused|spiffe://pactrain/agent/x|"
                                   "vision|rank 2 (agent 'x', site 'x') "
                                   "claims"));
    return refused->reason;
  }

 private:
  std::vector<std::unique_ptr<TestAgent>> agents_;
  std::vector<protocol::StartGeneration> told_;
};

TEST_F(MemberRpcTest, sec_AMemberWhoseClaimTheOthersContradictIsRefused) {
  Run();
  ComeBack(2, 1'000'000'000, 5);
  ComeBack(0, 7, 5);
  ComeBack(1, 7, 5);
  EXPECT_THAT(WhyXIsOut(),
              AllOf(HasSubstr("rank 2 (agent 'x', site 'x') claims a state of"),
                    HasSubstr("after 1000000000 steps"),
                    HasSubstr("by the word of agent 'a', 'b' nobody of it")));
}

TEST_F(MemberRpcTest, sec_AMemberThatWouldGiveOtherParametersIsRefused) {
  Run();
  ComeBack(2, 7, 6);
  ComeBack(0, 7, 5);
  ComeBack(1, 7, 5);
  EXPECT_THAT(WhyXIsOut(),
              AllOf(HasSubstr("other parameters after the same steps: it has"),
                    HasSubstr("; agent 'a', 'b' ")));
}

TEST_F(GrantsRpcTest, sec_EachSeesAndChangesWhatHeIsGranted) {
  Form();
  const auto x = Agent("x");
  x->SayOfTrainers(Joined("text", 0, 1));
  ASSERT_TRUE(x->Await<protocol::StartGeneration>());
  EXPECT_THAT(JobsSeenBy("reader/ann"), ElementsAre("vision"));
  EXPECT_THAT(JobsSeenBy("operator/xen"), ElementsAre("text"));
  EXPECT_THAT(JobsSeenBy("reader/all"), ElementsAre("text", "vision"));
  EXPECT_THAT(JobsSeenBy("operator"), ElementsAre());

  const auto xen = v1::Admin::NewStub(As("operator/xen"));
  v1::GetJobRequest get;
  get.mutable_group()->set_job("vision");
  v1::GetJobResponse got;
  grpc::Status status = xen->GetJob(MakeContext().get(), get, &got);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("\"operator/xen=vision\""));
  EXPECT_FALSE(got.has_job());
  v1::WatchJobRequest watch;
  *watch.mutable_group() = get.group();
  const auto context = MakeContext();
  v1::WatchJobResponse state;
  const auto states = xen->WatchJob(context.get(), watch);
  EXPECT_FALSE(states->Read(&state));
  EXPECT_EQ(states->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  v1::SetPinRequest pin;
  *pin.mutable_group() = get.group();
  v1::SetPinResponse pinned;
  EXPECT_EQ(xen->SetPin(MakeContext().get(), pin, &pinned).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  v1::ForgetJobRequest forget;
  forget.set_job("vision");
  v1::ForgetJobResponse forgot;
  EXPECT_EQ(xen->ForgetJob(MakeContext().get(), forget, &forgot).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  // Its chain is of all jobs.
  v1::ReadAuditResponse audit;
  EXPECT_EQ(xen->ReadAudit(MakeContext().get(), {}, &audit).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(audit.lines_size(), 0);
  v1::ListAgentsResponse agents;
  EXPECT_TRUE(xen->ListAgents(MakeContext().get(), {}, &agents).ok());
  EXPECT_EQ(agents.agents_size(), 3);  // Nodes are the cluster's.

  const auto ann = v1::Admin::NewStub(As("operator/ann"));
  EXPECT_TRUE(ann->SetPin(MakeContext().get(), pin, &pinned).ok());
  EXPECT_THAT(Audit(),
              HasSubstr("call refused|spiffe://pactrain/operator/xen|"
                        "vision|spiffe://pactrain/operator/xen may not "
                        "change job 'vision'"));
}

TEST_F(GrantsRpcTest, sec_WhoIsDeniedDoesNothing) {
  lists_.deny = {"agent/x", "operator/ann"};
  SetGrants(lists_);
  grpc::Status status;
  const absl::Duration end = base::MonotonicNow() + absl::Minutes(1);
  do {  // In force from the next tick on.
    v1::ListJobsResponse jobs;
    status = v1::Admin::NewStub(As("operator/ann"))
                 ->ListJobs(MakeContext().get(), {}, &jobs);
  } while (status.ok() && base::MonotonicNow() < end);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("rule 'operator/ann' of deny"));
  status = Agent("x")->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("rule 'agent/x' of deny"));
}

TEST_F(GrantsRpcTest, sec_AMemberThatMayNotAnyMoreIsOut) {
  Form();
  lists_.run = {"agent/b=vision", "agent/x=text"};
  SetGrants(lists_);
  // Though it says nothing itself.
  const auto ended = b_->Await<protocol::EndGeneration>();
  ASSERT_TRUE(ended);
  EXPECT_THAT(ended->reason,
              HasSubstr("spiffe://pactrain/agent/a may not run job 'vision'"));
  a_->Finish();
  EXPECT_EQ(Vision().phase, GroupPhase::kFailed);
  EXPECT_THAT(Audit(), HasSubstr("agent expelled|policy|vision|"));
}

TEST_F(GrantsRpcTest, sec_AWatcherThatMayNotAnyMoreIsToldSo) {
  Form();
  const auto ann = v1::Admin::NewStub(As("reader/ann"));
  v1::WatchJobRequest watch;
  watch.mutable_group()->set_job("vision");
  const auto context = MakeContext();
  const auto states = ann->WatchJob(context.get(), watch);
  v1::WatchJobResponse state;
  ASSERT_TRUE(states->Read(&state));
  lists_.see = {};
  SetGrants(lists_);
  while (states->Read(&state)) {
  }
  EXPECT_EQ(states->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

// Attack 6: the connection of a stolen machine.
TEST_F(GrantsRpcTest, sec_NoConnectionOutlivesItsCertificate) {
  const base::TlsFiles files = ca_.Issue(
      "short", base::TestCa::Leaf{{"spiffe://pactrain/agent/a"}, -3600, 5});
  TestAgent a(ChannelOf(files), "a", MakeContext());
  ASSERT_TRUE(a.Await<protocol::Welcome>());
  EXPECT_FALSE(a.Finish().ok());
  EXPECT_TRUE(
      log_.WaitFor("the certificate of spiffe://pactrain/agent/a has expired"))
      << log_.text();
}

TEST_F(GrantsRpcTest, sec_WhoIsEvictedIsOutWithAllThatHeDoes) {
  lists_.change.push_back("operator/top=*");
  SetGrants(lists_);
  Form();
  const auto top = v1::Admin::NewStub(As("operator/top"));
  v1::EvictRequest evict;
  evict.set_who("agent/a");
  v1::EvictResponse evicted;
  // Who may not change all jobs may not.
  EXPECT_EQ(v1::Admin::NewStub(As("operator/ann"))
                ->Evict(MakeContext().get(), evict, &evicted)
                .error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Vision().phase, GroupPhase::kRunning);
  grpc::Status status;
  const absl::Duration end = base::MonotonicNow() + absl::Minutes(1);
  do {  // Its grant is in force from the next tick on.
    status = top->Evict(MakeContext().get(), evict, &evicted);
  } while (!status.ok() && base::MonotonicNow() < end);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto ended = b_->Await<protocol::EndGeneration>();
  ASSERT_TRUE(ended);
  EXPECT_THAT(ended->reason,
              HasSubstr("evicted by spiffe://pactrain/operator/top"));
  EXPECT_FALSE(a_->Finish().ok());
  EXPECT_TRUE(log_.WaitFor("spiffe://pactrain/agent/a may do nothing"));
  status = Agent("a")->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("pactrain-admin readmit agent/a"));
  EXPECT_THAT(Audit(), HasSubstr("evicted|spiffe://pactrain/operator/top|"));
  // Also by a coordinator that starts anew.
  Stop();
  Start(ca_.Issue("coordinator", "spiffe://pactrain/coordinator"));
  EXPECT_EQ(Agent("a")->Finish().error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  const auto again = v1::Admin::NewStub(As("operator/top"));
  v1::ReadmitRequest readmit;
  v1::ReadmitResponse readmitted;
  readmit.set_who("agent/b");
  status = again->Readmit(MakeContext().get(), readmit, &readmitted);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("evicted are: agent/a"));
  readmit.set_who("agent/a");
  EXPECT_TRUE(again->Readmit(MakeContext().get(), readmit, &readmitted).ok());
  EXPECT_TRUE(Agent("a")->Await<protocol::Welcome>());
}

TEST_F(GrantsRpcTest, sec_NobodyEvictsHimself) {
  lists_.change = {"operator=*"};
  SetGrants(lists_);
  const auto top = v1::Admin::NewStub(As("operator"));
  v1::EvictRequest evict;
  v1::EvictResponse evicted;
  evict.set_who("operator*");
  grpc::Status status;
  const absl::Duration end = base::MonotonicNow() + absl::Minutes(1);
  do {
    status = top->Evict(MakeContext().get(), evict, &evicted);
  } while (status.error_code() == grpc::StatusCode::PERMISSION_DENIED &&
           base::MonotonicNow() < end);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("means you"));
  evict.set_who("nobody!");
  EXPECT_EQ(top->Evict(MakeContext().get(), evict, &evicted).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// By its key alone: the connection ends, and with it the rank.
TEST_F(GrantsRpcTest, sec_ADeniedKeyEndsItsConnection) {
  const base::TlsFiles files = ca_.Issue("n", "spiffe://pactrain/agent/a");
  std::stringstream pem;
  pem << std::ifstream(files.cert).rdbuf();
  a_ = std::make_unique<TestAgent>(ChannelOf(files), "a", MakeContext());
  b_ = Agent("b");
  a_->SayOfTrainers(Joined("vision", 0, 2));
  b_->SayOfTrainers(Joined("vision", 1, 2));
  ASSERT_TRUE(b_->Await<protocol::StartGeneration>());
  lists_.deny = {"key/" + base::FactsOf(absl::string_view(pem.str())).key};
  SetGrants(lists_);
  EXPECT_FALSE(a_->Finish().ok());
  ASSERT_TRUE(b_->Await<protocol::EndGeneration>());
  EXPECT_EQ(Vision().phase, GroupPhase::kFailed);
}

// By the list of its CA: the same.
TEST_F(GrantsRpcTest, sec_ACertificateThatItsCaTookBackEndsItsConnection) {
  Stop();
  base::Mutex mutex;
  auto revoked = std::make_shared<const base::RevokedCertificates>();
  revoked_ = [&] {
    base::MutexLock lock(&mutex);
    return revoked;
  };
  Start(ca_.Issue("coordinator", "spiffe://pactrain/coordinator"));
  SetGrants(lists_);
  const base::TlsFiles files = ca_.Issue("n", "spiffe://pactrain/agent/a");
  a_ = std::make_unique<TestAgent>(ChannelOf(files), "a", MakeContext());
  b_ = Agent("b");
  a_->SayOfTrainers(Joined("vision", 0, 2));
  b_->SayOfTrainers(Joined("vision", 1, 2));
  ASSERT_TRUE(b_->Await<protocol::StartGeneration>());
  std::stringstream ca;
  ca << std::ifstream(files.ca).rdbuf();
  const auto list =
      base::RevokedCertificates::Of(ca_.Revoke({files}), ca.str());
  ASSERT_OK(list);
  {
    base::MutexLock lock(&mutex);
    revoked = std::make_shared<const base::RevokedCertificates>(*list);
  }
  EXPECT_FALSE(a_->Finish().ok());
  ASSERT_TRUE(b_->Await<protocol::EndGeneration>());
  const grpc::Status again =
      TestAgent(ChannelOf(files), "a", MakeContext()).Finish();
  EXPECT_EQ(again.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(again.error_message(),
              HasSubstr("its CA took certificate serial"));
  // Another one of the same name may.
  EXPECT_TRUE(Agent("a")->Await<protocol::Welcome>());
  Stop();  // Before what it asks goes.
}

}  // namespace
}  // namespace pactrain::coordinator
