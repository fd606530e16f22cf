// The command against a real coordinator: what is written, and exit codes.
#include <google/protobuf/util/json_util.h>

#include <filesystem>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "base/tls/job_key.h"
#include "base/version.h"
#include "coordinator/admin/job_text.h"
#include "coordinator/admin/run.h"
#include "coordinator/rpc/test_server.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// Agents that listen to nothing.
class DeafStream : public Driver::Stream {
 public:
  void Send(const protocol::CoordinatorMessage&) override {}
  void Close(const absl::Status&) override {}
};

struct Outcome {
  int exit_code = 0;
  std::string out, err;
};

// As main() does.
Outcome Tool(std::vector<const char*> words) {
  words.insert(words.begin(), "pactrain-admin");
  Outcome outcome;
  std::ostringstream out, err;
  const auto command = ParseCommand(static_cast<int>(words.size()),
                                    words.data(), out, err, &outcome.exit_code);
  if (command) {
    AdminClient client({command->coordinator, command->tls});
    const absl::Status status = Run(*command, client, out, err);
    outcome.exit_code = status.ok() ? 0 : 1;
    err << status.message();
  }
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// A coordinator with two agents, each with a rank of the job "myjob".
class AdminTest : public ServerFixture {
 protected:
  void SetUp() override {
    Start();
    coordinator_ =
        absl::StrCat("--coordinator=", server_->address().ToString());
  }

  void Form() {
    for (uint32_t rank : {0u, 1u}) {
      auto stream = driver_->Open(std::make_shared<DeafStream>());
      ASSERT_OK(stream);
      streams_[rank] = *stream;
      const std::string name = absl::StrCat("node", rank);
      driver_->OnMessage(
          *stream, protocol::AgentHello{
                       name, base::DigestOf(name), absl::StrCat("site", rank),
                       absl::StrCat("127.0.0.1:900", rank), "t", ""});
      driver_->OnMessage(
          *stream,
          protocol::TrainerJoined{
              {"myjob", 0},
              {rank, 2, {1, rank + 1}, "run-1", {2, 2}, "a network", 10, 0},
              0});
    }
  }
  void Vote(const protocol::Digest& masks, uint64_t kept) {
    for (uint32_t rank : {0u, 1u}) {
      driver_->OnMessage(
          streams_[rank],
          protocol::MaskVote{
              {"myjob", 0}, 1, rank, {3, 3}, masks, 1, 1, true, kept, 100});
    }
  }
  Outcome Admin(std::vector<const char*> words) {
    words.push_back(coordinator_.c_str());
    return Tool(std::move(words));
  }
  std::optional<Pin> PinOfJob() const {
    return driver_->Snapshot().groups.at(0).pin;
  }

  std::string coordinator_;
  StreamId streams_[2] = {};
};

TEST_F(AdminTest, JobsAreATable) {
  EXPECT_EQ(Admin({"jobs"}).out, "no jobs are known\n");
  Form();
  const Outcome jobs = Admin({"jobs"});
  EXPECT_EQ(jobs.exit_code, 0) << jobs.err;
  EXPECT_EQ(
      jobs.out,
      "JOB    STATE    GENERATION  MEMBERS            STEP  IN FORCE   PIN\n"
      "myjob  running  1           2 agents, 2 ranks  -     FULL fp32  -\n");
}

TEST_F(AdminTest, AJobIsShownWithMembersDecisionsAndReasons) {
  Form();
  Vote({5, 5}, 30);
  const Outcome job = Admin({"job", "myjob"});
  EXPECT_EQ(job.exit_code, 0) << job.err;
  for (const char* part : {"state       running\n",
                           "in force    FULL fp32, version 1: generation 1",
                           "prepared    COMPACTED fp32, version 2: mask set ",
                           "keep        30.0 %\n", "risk r      not measured\n",
                           "AGENT  SITE   ADDRESS         RANKS\n",
                           "node1  site1  127.0.0.1:9001  1\n"}) {
    EXPECT_THAT(job.out, HasSubstr(part));
  }
}

TEST_F(AdminTest, MasksThatMoveAreShownWithTheirRankAndWhatMoved) {
  Form();
  EXPECT_THAT(Admin({"job", "myjob"}).out, Not(HasSubstr("masks ")));
  protocol::MaskVote vote{{"myjob", 0}, 1,  0,    {3, 3}, {5, 5},
                          10,           10, true, 3,      9};
  driver_->OnMessage(streams_[0], vote);
  vote.rank = 1;
  vote.steps_unchanged = 7;
  vote.changed_step = 30;
  vote.moved = "fc.weight 12 elements moved";
  driver_->OnMessage(streams_[1], vote);
  EXPECT_THAT(
      Admin({"job", "myjob"}).out,
      HasSubstr("masks       unchanged for 7 of 10 steps at rank 1, the least "
                "of all ranks\n"
                "moved       last before step 30: fc.weight 12 elements moved\n"
                "compacted   not yet\n"));
  vote.steps_unchanged = 10;
  driver_->OnMessage(streams_[1], vote);
  protocol::StepReport report;
  report.group = {"myjob", 0};
  report.generation = 1;
  report.committed_step = report.committed_count = 45;
  report.first_compacted_step = 42;
  driver_->OnMessage(streams_[0], report);
  EXPECT_THAT(Admin({"job", "myjob"}).out,
              HasSubstr("masks       settled: unchanged for 10 steps at all "
                        "ranks\n"
                        "moved       last before step 30: fc.weight 12 "
                        "elements moved\n"
                        "compacted   first at step 42\n"));
  EXPECT_THAT(Admin({"job", "myjob", "--json"}).out,
              HasSubstr("\"firstCompactedStep\":\"42\""));
}

TEST(JobDetails, ShowsTheRiskAndItsClippedPartOfARunningJobOnly) {
  v1::JobState job;
  job.set_state("running");
  job.set_risk(0.1512);
  job.set_risk_clip(0.02);
  EXPECT_THAT(JobDetails(job), HasSubstr("risk r  0.151 of the batch, 0.020 of "
                                         "it by clipping\n"));
  job.clear_risk();
  job.set_state("ended");
  EXPECT_THAT(JobDetails(job), Not(HasSubstr("risk")));
}

TEST_F(AdminTest, APinIsSetShownAndTakenBack) {
  Form();
  Vote({5, 5}, 30);
  const Outcome pin = Admin({"pin", "myjob", "TERNARY", "--levels", "7"});
  EXPECT_EQ(pin.exit_code, 0) << pin.err;
  EXPECT_THAT(pin.out, HasSubstr("pinned to TERNARY 7 levels\n"));
  EXPECT_EQ(PinOfJob(),
            (Pin{protocol::Mode::kTernary, protocol::Codec::kLevels7}));
  EXPECT_THAT(Admin({"jobs"}).out, HasSubstr("TERNARY 7 levels\n"));
  EXPECT_EQ(Admin({"pin", "myjob", "FULL", "--codec=bf16"}).exit_code, 0);
  EXPECT_EQ(PinOfJob(), (Pin{protocol::Mode::kFull, protocol::Codec::kBf16}));
  EXPECT_EQ(Admin({"pin", "myjob", "COMPACTED"}).exit_code, 0);
  EXPECT_EQ(PinOfJob(),
            (Pin{protocol::Mode::kCompacted, protocol::Codec::kFp32}));
  const Outcome unpin = Admin({"unpin", "myjob"});
  EXPECT_EQ(unpin.exit_code, 0) << unpin.err;
  EXPECT_THAT(unpin.out, HasSubstr("left to the policy\n"));
  EXPECT_FALSE(PinOfJob().has_value());
}

TEST_F(AdminTest, AJobIsForgottenWhenNobodyOfItIsInSight) {
  Form();
  const Outcome early = Admin({"forget", "myjob"});
  EXPECT_EQ(early.exit_code, 1);
  EXPECT_THAT(early.err, HasSubstr("has 2 live ranks"));
  for (const StreamId stream : streams_) driver_->OnClosed(stream, "cut");
  const Outcome forget = Admin({"forget", "myjob"});
  EXPECT_EQ(forget.exit_code, 0) << forget.err;
  EXPECT_THAT(forget.out, HasSubstr("forgot the state of job myjob"));
  EXPECT_THAT(Admin({"forget", "myjob/1"}).err,
              HasSubstr("a job is forgotten with all its models; write myjob"));
}

TEST_F(AdminTest, APinThatIsNotInForceSaysWhy) {
  Form();
  Vote({}, 100);
  EXPECT_THAT(Admin({"pin", "myjob", "COMPACTED"}).out,
              HasSubstr("FULL fp32  pinned to COMPACTED fp32  no masks voted: "
                        "all elements are sent; pinned to COMPACTED fp32, not "
                        "in force: no mask set is agreed"));
}

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
    driver_->OnMessage(
        streams_[rank],
        protocol::TrainerLeft{{"myjob", 0}, rank, {1, rank + 1}, "detached"});
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

TEST_F(AdminTest, JsonIsTheMessageOfTheService) {
  Form();
  const Outcome json = Admin({"--json", "job", "myjob"});
  v1::JobState job;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json.out, &job).ok())
      << json.out;
  EXPECT_EQ(job.DebugString(),
            ToProto(driver_->Snapshot().groups.at(0)).DebugString());
}

TEST_F(AdminTest, WhatTheCoordinatorRefusesIsSaidInItsWords) {
  for (const char* command : {"job", "watch", "unpin"}) {
    const Outcome refused = Admin({command, "nobody"});
    EXPECT_EQ(refused.exit_code, 1) << command;
    EXPECT_THAT(refused.err,
                MatchesRegex("coordinator 127.0.0.1:[0-9]+: .*job 'nobody'.*"
                             "pactrain-admin jobs.*"));
  }
}

TEST_F(AdminTest, ACoordinatorThatIsGoneIsSaidToBeUnreachable) {
  server_->Stop();
  for (const char* command : {"job", "watch", "unpin"}) {
    const Outcome gone = Admin({command, "myjob"});
    EXPECT_EQ(gone.exit_code, 1) << command;
    EXPECT_THAT(gone.err, HasSubstr("cannot be reached ("));
    EXPECT_THAT(gone.err, HasSubstr("--coordinator"));
  }
}

TEST(AdminNewKey, MakesAFileThatDaemonsTake) {
  const std::string path = ::testing::TempDir() + "/new.key";
  std::filesystem::remove(path);
  const Outcome made = Tool({"new-key", path.c_str()});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_OK(base::JobKey::FromFile("--job-key-file", path));
  const Outcome again = Tool({"new-key", path.c_str()});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("FILE: " + path + " cannot be written"));
}

TEST(AdminNewKey, MakesOneOfOneJobOfAnother) {
  const std::string folder = base::MakeTestFolder();
  const std::string first = folder + "/first.key", job = folder + "/job.key";
  ASSERT_EQ(Tool({"new-key", first.c_str()}).exit_code, 0);
  const Outcome made = Tool(
      {"new-key", "--job", "vision", "--from", first.c_str(), job.c_str()});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  ASSERT_OK_AND_ASSIGN(const base::JobKey key,
                       base::JobKey::FromFile("--job-key-file", job));
  EXPECT_EQ(key.host(), "vision.job.pactrain");
  EXPECT_THAT(made.out, HasSubstr("key/" + key.id() + ", of job vision alone"));
  const std::string other = folder + "/other.key";
  const Outcome again =
      Tool({"new-key", "--job", "text", "--from", job.c_str(), other.c_str()});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("--from: " + job + " is a key of vision"));
}

TEST_F(AdminTest, EvictsAndReadmits) {
  Outcome outcome = Admin({"evict", "node-1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("evicted agent/node-1: "));
  outcome = Admin({"evict", "node-1..vision"});
  EXPECT_THAT(outcome.out, HasSubstr("job/vision/agent/node-1..vision"));
  EXPECT_THAT(driver_->Evicted(),
              ::testing::ElementsAre("agent/node-1",
                                     "job/vision/agent/node-1..vision"));
  outcome = Admin({"evict", "every*body"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("'every*body' means nobody"));
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

TEST_F(AdminTest, MasksAndDecisionsOfAJobAreShown) {
  Form();
  EXPECT_EQ(Admin({"masks", "myjob"}).out,
            "job    myjob\nmasks  nobody has voted for any\n");
  Vote({5, 5}, 30);
  EXPECT_THAT(Admin({"masks", "myjob"}).out,
              HasSubstr("keep        30.0 %\nmasks       settled"));
  EXPECT_THAT(Admin({"masks", "myjob"}).out,
              HasSubstr("each keeps  not told by rank 0 at agent node0: "));
  protocol::StepReport report;
  report.group = {"myjob", 0};
  report.generation = 1;
  report.committed_step = report.committed_count = 1;
  report.sent_bytes = 1'000'000;
  report.sent_dense_bytes = 3'000'000;
  report.keep_by_parameter = {{5, 5}, {{"fc.weight", 12, 40}}, 2, 18, 60};
  driver_->OnMessage(streams_[0], report);
  EXPECT_THAT(Admin({"masks", "myjob"}).out,
              HasSubstr("\nPARAMETER   KEPT  OF  KEEP\n"
                        "fc.weight   12    40  30.0 %\n"
                        "(2 others)  18    60  30.0 %\n"));
  EXPECT_THAT(Admin({"job", "myjob"}).out,
              HasSubstr("time not known (no FULL step was measured), and 2.0 "
                        "of 3.0 MB between sites, since "));
  const std::string shown = Admin({"decisions", "myjob"}).out;
  EXPECT_THAT(shown, HasSubstr("2        COMPACTED fp32  prepared\n"));
  EXPECT_THAT(shown, HasSubstr("1        FULL fp32       in force\n"));
  EXPECT_THAT(Admin({"decisions", "myjob", "--why"}).out,
              ::testing::AllOf(HasSubstr("in force  generation 1"),
                               HasSubstr("\nnow: ")));
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

TEST_F(AdminTest, BashCompletesCommandsAndTheirFlags) {
  const Outcome outcome = Tool({"completion", "bash"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("drain) words=\"--help"));
  EXPECT_THAT(outcome.out, HasSubstr("--force\"; break"));
  EXPECT_THAT(outcome.out, HasSubstr("local word words=\"jobs agents "));
}

TEST_F(AdminTest, MistakesNameTheWordAndWhatIsAllowed) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> mistakes =
      {{{}, "a command is needed: jobs, agents, links, plan, audit, new-key, "},
       {{"bogus", "j"},
        "'bogus' is no command; a command is needed: jobs, agents"},
       {{"drain", "No Name"}, "AGENT: \"No Name\" is not a name"},
       {{"backup", "../b"}, "FILE: \"../b\" is not a name"},
       {{"completion", "fish"}, "fish not in {bash}"},
       {{"job"}, "NAME is required"},
       {{"job", "My Job"}, "NAME: \"My Job\" is not a name"},
       {{"job", "j/16"}, "NAME: 'j/16' is neither a job nor JOB/MODEL"},
       {{"pin", "j", "FAST"}, "MODE: FAST not in {COMPACTED,FULL,TERNARY}"},
       {{"pin", "j", "TERNARY"}, "TERNARY needs --levels 3, 5, 7, 15 or 31"},
       {{"pin", "j", "TERNARY", "--levels=4"},
        "--levels: 4 not in {3,5,7,15,31}"},
       {{"pin", "j", "TERNARY", "--levels=7", "--codec=fp32"}, "no --codec"},
       {{"pin", "j", "FULL", "--levels=7"},
        "--levels 7 goes with TERNARY, not with FULL"},
       {{"jobs", "--coordinator=10.0.0.1:7070"}, "is not loopback"},
       {{"jobs", "--coordinator=here"}, "has no port"},
       {{"jobs", "--tls-cert=reader.pem"},
        "--tls-key (or PACTRAIN_ADMIN_TLS_KEY): not given"},
       {{"jobs", "--job-key-file=/nowhere"},
        "--job-key-file (or PACTRAIN_ADMIN_JOB_KEY_FILE): /nowhere cannot be "
        "read"},
       {{"jobs", "--job-key-file=/f", "--tls-cert=reader.pem"},
        "given beside --tls-cert (or PACTRAIN_ADMIN_TLS_CERT)"},
       {{"new-key"}, "FILE is required"},
       {{"new-key", "--job=j", "f"}, "--job requires --from"},
       {{"new-key", "--from=f", "f"}, "--from requires --job"},
       {{"new-key", "--job=a..b", "--from=f", "f"},
        "--job: 'a..b' has two dots in a row"},
       {{"evict"}, "WHO is required"}};
  for (const auto& [words, text] : mistakes) {
    const Outcome outcome = Tool(words);
    EXPECT_EQ(outcome.exit_code, 2) << text;
    EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_THAT(outcome.out, Not(HasSubstr("pinned")));
  }
}

}  // namespace
}  // namespace pactrain::coordinator
