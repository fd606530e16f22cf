// What the command says of agents and links and does with them.
#include "absl/time/clock.h"
#include "base/version.h"
#include "coordinator/admin/test_admin.h"
#include "protocol/proto_convert.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(AdminTest, AgentsAreListedWithVersionsAddressesAndTheClock) {
  Form();
  AdminClient client({server_->address().ToString(), {}});
  const absl::Time before = absl::Now();
  ASSERT_OK_AND_ASSIGN(const v1::ListAgentsResponse answer,
                       client.ListAgents());
  EXPECT_EQ(answer.version(), base::kVersion);
  EXPECT_EQ(answer.term(), 1);
  EXPECT_GE(answer.unix_seconds(),
            absl::ToDoubleSeconds(before - absl::UnixEpoch()));
  EXPECT_LE(answer.unix_seconds(),
            absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  ASSERT_EQ(answer.agents_size(), 2);
  EXPECT_EQ(answer.agents(1).agent(), "node1");
  EXPECT_EQ(answer.agents(1).site(), "site1");
  EXPECT_EQ(answer.agents(1).data_address(), "127.0.0.1:9001");
  EXPECT_EQ(answer.agents(1).version(), "t");
  EXPECT_TRUE(answer.agents(1).connected());
}

TEST_F(AdminTest, LinksAreListedAsAgentsMeasuredThem) {
  Form();
  protocol::StepReport report;
  report.group = {"myjob", 0};
  report.generation = 1;
  report.links = {{"site1", 10, 20, 12.5e6, 0.02}};
  driver_->OnMessage(streams_[0], report);
  AdminClient client({server_->address().ToString(), {}});
  ASSERT_OK_AND_ASSIGN(const v1::ListAgentsResponse answer,
                       client.ListAgents());
  ASSERT_EQ(answer.links_size(), 1);
  EXPECT_EQ(answer.links(0).agent(), "node0");
  EXPECT_EQ(answer.links(0).site(), "site0");
  EXPECT_EQ(answer.links(0).peer_site(), "site1");
  EXPECT_EQ(answer.links(0).goodput_bytes_per_second(), 12.5e6);
  EXPECT_EQ(answer.links(0).rtt_seconds(), 0.02);
}

TEST_F(AdminTest, LinksToSitesThatLeftAndOfJobsThatEndedAreNotListed) {
  Form();
  protocol::StepReport report;
  report.group = {"myjob", 0};
  report.generation = 1;
  report.links = {{"site1", 10, 20, 12.5e6, 0.02}, {"site7", 1, 2, 1e6, 0.01}};
  driver_->OnMessage(streams_[0], report);
  AdminClient client({server_->address().ToString(), {}});
  ASSERT_OK_AND_ASSIGN(const v1::ListAgentsResponse running,
                       client.ListAgents());
  ASSERT_EQ(running.links_size(), 1);
  EXPECT_EQ(running.links(0).peer_site(), "site1");
  for (uint32_t rank : {0u, 1u}) {
    driver_->OnMessage(streams_[rank],
                       local_[rank].With(protocol::TrainerLeft{
                           {"myjob", 0}, rank, {1, rank + 1}, "detached"}));
  }
  ASSERT_OK_AND_ASSIGN(const v1::ListAgentsResponse ended, client.ListAgents());
  EXPECT_EQ(ended.links_size(), 0);
}

TEST_F(AdminTest, SiteRatesAreListedAsTheyWereGiven) {
  Stop();
  options_.site_rates = {{"site0", 125e6}};
  Start();
  AdminClient client({server_->address().ToString(), {}});
  ASSERT_OK_AND_ASSIGN(const v1::ListAgentsResponse answer,
                       client.ListAgents());
  ASSERT_EQ(answer.site_rates_size(), 1);
  EXPECT_EQ(answer.site_rates().at("site0"), 125e6);
}

// Who has no certificate is believed of his name, and out by it.
TEST_F(AdminTest, sec_WhoIsEvictedWithoutCertificatesDoesNotComeBack) {
  const auto hello = [&] {
    const auto context = MakeContext();
    const auto stub = v1::Coordinator::NewStub(ChannelOf());
    const auto stream = stub->AgentStream(context.get());
    stream->Write(protocol::ToProto(protocol::AgentMessage(
        protocol::AgentHello{"z", {1, 1}, "x", "127.0.0.1:9", "t", ""})));
    v1::CoordinatorMessage message;
    const bool welcome = stream->Read(&message) && message.has_welcome();
    context->TryCancel();
    stream->Finish();
    return welcome;
  };
  EXPECT_TRUE(hello());
  EXPECT_THAT(Admin({"evict", "z"}).out, HasSubstr("who is agent/z by now"));
  EXPECT_FALSE(hello());
  EXPECT_EQ(Admin({"readmit", "z"}).exit_code, 0);
  EXPECT_TRUE(hello());
}

TEST_F(AdminTest, EvictsAndReadmits) {
  Outcome outcome = Admin({"evict", "node-1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("evicted agent/node-1, which means nobody who is "
                        "connected, and no agent that is known; known are: "));
  outcome = Admin({"evict", "node-1..vision"});
  EXPECT_THAT(outcome.out, HasSubstr("job/vision/agent/node-1..vision"));
  EXPECT_THAT(driver_->EvictedRules(),
              ::testing::ElementsAre("agent/node-1",
                                     "job/vision/agent/node-1..vision"));
  outcome = Admin({"evict", "job/vision/*"});
  EXPECT_THAT(outcome.out, HasSubstr("a new key of the job is refused"));
  EXPECT_THAT(outcome.out, HasSubstr("readmit 'job/vision/*'"));
  EXPECT_EQ(Admin({"readmit", "job/vision/*"}).exit_code, 0);
  outcome = Admin({"evict", "every*body"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("'every*body' means nobody"));
  EXPECT_THAT(Admin({"evict", "node-2", "--json"}).out,
              HasSubstr("\"meant\":[],\"known\":["));
  outcome = Admin({"evict", "serial/05f"});
  EXPECT_THAT(outcome.out, Not(HasSubstr("known")));
  EXPECT_EQ(Admin({"readmit", "serial/5F"}).exit_code, 0);
  outcome = Admin({"readmit", "agent/node-1"});
  EXPECT_EQ(outcome.out, "readmitted agent/node-1\n");
  outcome = Admin({"readmit", "node-1"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("'agent/node-1' is not evicted"));
}

TEST_F(AdminTest, AgentsLinksAndPlansAreTables) {
  EXPECT_EQ(Admin({"agents"}).out, "no agents are known\n");
  EXPECT_EQ(Admin({"plan"}).out, "no job has had a generation\n");
  Form();
  EXPECT_EQ(Admin({"agents"}).out,
            "AGENT  SITE   ADDRESS         VERSION  STATE\n"
            "node0  site0  127.0.0.1:9000  t        connected\n"
            "node1  site1  127.0.0.1:9001  t        connected\n");
  EXPECT_THAT(Admin({"links"}).out, HasSubstr("no link was measured"));
  protocol::StepReport report;
  report.group = {"myjob", 0};
  report.generation = 1;
  report.decision_version = 1;
  report.links = {{"site1", 1, 1, 1.25e6, 0.0205}};
  driver_->OnMessage(streams_[0], report);
  EXPECT_EQ(Admin({"links"}).out,
            "FROM   TO     AGENT  RATE       ROUND TRIP\n"
            "site0  site1  node0  10 Mbit/s  20.5 ms\n");
  EXPECT_THAT(Admin({"plan"}).out, HasSubstr("myjob  running  "));
  EXPECT_THAT(Admin({"plan", "--json"}).out, HasSubstr("\"plan\":\""));
  EXPECT_THAT(Admin({"agents", "--json"}).out, HasSubstr("\"drained\":\"\""));
}

TEST_F(AdminTest, ANodeIsDrained) {
  Form();
  Outcome outcome = Admin({"drain", "node1"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("would end myjob"));
  outcome = Admin({"drain", "node1", "--force"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("drained node1: its ranks leave myjob; it takes"));
  EXPECT_THAT(Admin({"agents"}).out, HasSubstr("'node1' was drained by"));
  EXPECT_THAT(Admin({"audit"}).out, HasSubstr("agent drained"));
  outcome = Admin({"undrain", "node0"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("'node0' is not drained; drained are: "
                                     "node1"));
  outcome = Admin({"undrain", "node1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "undrained node1: it takes trainers again; start its launch "
            "again\n");
  EXPECT_THAT(Admin({"agents"}).out, Not(HasSubstr("drained")));
  EXPECT_THAT(Admin({"audit"}).out, HasSubstr("agent undrained"));
}

TEST_F(AdminTest, ABackupIsWrittenAtTheCoordinator) {
  Form();
  Outcome outcome = Admin({"backup", "first"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("/backups/first at the coordinator"));
  outcome = Admin({"backup", "first"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/backups/first is there already"));
  EXPECT_THAT(Admin({"audit"}).out, HasSubstr("backups/first"));
}

}  // namespace
}  // namespace pactrain::coordinator
