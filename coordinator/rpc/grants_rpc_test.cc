// Whose agents may run which jobs, and who sees and changes them, through the
// server's calls with certificates.
#include <fstream>
#include <sstream>

#include "base/status_matchers.h"
#include "base/tls/certificate_facts.h"
#include "coordinator/rpc/test_teams.h"

namespace pactrain::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using GrantsRpcTest = TeamsFixture;

// Its own certificate ends soon.
class ShortCoordinatorTest : public TeamsFixture {
 protected:
  base::TlsFiles OwnFiles() const override {
    return ca_.Issue(
        "coordinator",
        base::TestCa::Leaf{.uris = {"spiffe://pactrain/coordinator"},
                           .valid_to_s = 5});
  }
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

TEST_F(GrantsRpcTest, sec_WhoLosesItWhileTheCoordinatorIsDownIsOut) {
  Form();
  Stop();
  lists_.deny = {"agent/a"};
  SetGrants(lists_);
  Start(ca_.Issue("coordinator", "spiffe://pactrain/coordinator"));
  EXPECT_TRUE(EventuallyFailed()) << "no member was looked at";
  EXPECT_THAT(Audit(), HasSubstr("agent expelled|policy|vision|"));
}

TEST_F(GrantsRpcTest, sec_WhoWaitsAndMayNotAnyMoreIsRefused) {
  a_ = Agent("a");
  a_->SayOfTrainers(Joined("vision", 0, 2));
  ASSERT_TRUE(a_->Await<protocol::GroupWaiting>());
  lists_.run = {"agent/b=vision", "agent/x=text"};
  SetGrants(lists_);
  const auto refused = a_->Await<protocol::JoinRefused>();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->reason, HasSubstr("no rule of run in policy.yaml"));
  b_ = Agent("b");
  b_->SayOfTrainers(Joined("vision", 1, 2));
  ASSERT_TRUE(b_->Await<protocol::GroupWaiting>());
  EXPECT_EQ(Vision().phase, GroupPhase::kWaiting);
}

TEST_F(GrantsRpcTest, sec_AnAgentThatIsAwayIsOutByItsSerialToo) {
  lists_.change = {"operator/top=*"};
  SetGrants(lists_);
  const base::TlsFiles files = ca_.Issue("n", "spiffe://pactrain/agent/a");
  std::stringstream pem;
  pem << std::ifstream(files.cert).rdbuf();
  const auto serial = base::FactsOf(absl::string_view(pem.str())).serial;
  a_ = std::make_unique<TestAgent>(ChannelOf(files), "a", MakeContext());
  b_ = Agent("b");
  a_->SayOfTrainers(Joined("vision", 0, 2));
  b_->SayOfTrainers(Joined("vision", 1, 2));
  ASSERT_TRUE(b_->Await<protocol::StartGeneration>());
  a_.reset();  // Its link, as it may cut itself.
  v1::EvictRequest evict;
  evict.set_who("serial/" + serial);
  const auto top = v1::Admin::NewStub(As("operator/top"));
  v1::EvictResponse evicted;
  grpc::Status status;
  const absl::Duration end = base::MonotonicNow() + absl::Minutes(1);
  do {
    status = top->Evict(MakeContext().get(), evict, &evicted);
  } while (!status.ok() && base::MonotonicNow() < end);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(evicted.meant(), ElementsAre("agent/a"));
  const auto ended = b_->Await<protocol::EndGeneration>();
  ASSERT_TRUE(ended);
  EXPECT_THAT(ended->reason, HasSubstr("evicted 'serial/"));
}

// It would be held against rules as another's.
TEST_F(GrantsRpcTest, sec_ANameAsOfAJobsKeyNeedsSuchAKey) {
  const grpc::Status status = Agent("b..vision")->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("a name without '..'"));
}

// As a thief, or a process that was forgotten, with a certificate that was
// replaced, while the agent is away.
TEST_F(GrantsRpcTest, sec_WhoIsRefusedPutsOutNobodyOfHisName) {
  const base::TlsFiles old = ca_.Issue("n", "spiffe://pactrain/agent/a");
  std::stringstream pem;
  pem << std::ifstream(old.cert).rdbuf();
  Form();
  Stop();
  a_.reset();
  lists_.deny = {"serial/" +
                 base::FactsOf(absl::string_view(pem.str())).serial};
  SetGrants(lists_);
  Start(ca_.Issue("coordinator", "spiffe://pactrain/coordinator"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(
        TestAgent(ChannelOf(old), "a", MakeContext()).Finish().error_code(),
        grpc::StatusCode::PERMISSION_DENIED);
  }
  EXPECT_TRUE(Agent("a")->Await<protocol::Welcome>());
  EXPECT_EQ(Vision().phase, GroupPhase::kRunning);
}

TEST_F(GrantsRpcTest, sec_AnAgentOfASiteThatItMayNotBeOfAnyMoreIsOut) {
  lists_.run = {"site/a=*", "site/b=*"};
  lists_.sites = {"agent/a=a", "agent/b=b"};
  Stop();
  SetGrants(lists_);
  Start(ca_.Issue("coordinator", "spiffe://pactrain/coordinator"));
  Form();
  lists_.sites = {"agent/a=elsewhere", "agent/b=b"};
  SetGrants(lists_);
  EXPECT_TRUE(b_->Await<protocol::EndGeneration>());
  EXPECT_FALSE(a_->Finish().ok());
  const grpc::Status again = Agent("a")->Finish();
  EXPECT_THAT(again.error_message(), HasSubstr("may not be of site 'a'"));
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
  using Leaf = base::TestCa::Leaf;
  for (const auto& [name, leaf] :
       {std::pair("a", Leaf{{"spiffe://pactrain/agent/a"}, -3600, 5}),
        std::pair("b", Leaf{.uris = {"spiffe://pactrain/agent/b"},
                       .ca_valid_to_s = 5})}) {
    TestAgent agent(ChannelOf(ca_.Issue("short", leaf)), name, MakeContext());
    ASSERT_TRUE(agent.Await<protocol::Welcome>());
    EXPECT_FALSE(agent.Finish().ok());
    EXPECT_TRUE(log_.WaitFor(
        absl::StrCat("the certificate of spiffe://pactrain/agent/", name,
                     ", or its CA's or the coordinator's, has ended")))
        << log_.text();
  }
}

TEST_F(ShortCoordinatorTest, sec_NoConnectionOutlivesTheCoordinatorsOwn) {
  const auto agent = Agent("a");
  ASSERT_TRUE(agent->Await<protocol::Welcome>());
  EXPECT_FALSE(agent->Finish().ok());
  EXPECT_TRUE(log_.WaitFor(
      "the certificate of spiffe://pactrain/agent/a, or its CA's or the "
      "coordinator's, has ended"))
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
