// What the doctor says of each thing that may be wrong.
#include "coordinator/admin/doctor.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/tls/job_key.h"
#include "base/tls/test_certs.h"
#include "coordinator/admin/agent_probe.h"
#include "coordinator/admin/dial.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;

// A node with an agent, in a cluster of two sites where all is well.
Facts Healthy() {
  Facts facts;
  facts.version = "1.0";
  facts.now = absl::FromUnixSeconds(1'000'000);
  facts.socket = "/run/pactrain/agent.sock";
  wire::About about = {};
  std::strcpy(about.version, "1.0");
  std::strcpy(about.agent, "n1");
  std::strcpy(about.site, "a");
  std::strcpy(about.listen, "0.0.0.0:7072");
  std::strcpy(about.data_address, "10.0.0.1:7072");
  std::strcpy(about.coordinator, "head:7070");
  about.connected = 1;
  facts.agent = about;
  const base::CertificateLife life = {facts.now,
                                      facts.now + absl::Hours(24 * 90)};
  facts.certificates = {
      {"--tls-cert", "reader.pem", base::CertificateLives{life, life}}};
  facts.coordinator = "head:7070";
  facts.tls = true;
  facts.round_trip = absl::Milliseconds(4);
  facts.clock_ahead = absl::Milliseconds(20);
  v1::ListAgentsResponse answer;
  answer.set_version("1.0");
  answer.set_term(3);
  for (const auto& [name, site, address] :
       {std::tuple("n1", "a", "10.0.0.1:7072"),
        std::tuple("n2", "b", "10.0.0.2:7072")}) {
    v1::AgentState& agent = *answer.add_agents();
    agent.set_agent(name);
    agent.set_site(site);
    agent.set_data_address(address);
    agent.set_version("1.0");
    agent.set_connected(true);
    facts.dialled[address] = absl::OkStatus();
  }
  facts.answer = answer;
  facts.kernels = Kernels{false, "no NVIDIA driver (x)"};
  return facts;
}

// The text has a finding of this level with these words and this advice.
void ExpectFound(const Facts& facts, Level level, const std::string& check,
                 const std::string& words, const std::string& to_do) {
  const Findings findings = Examine(facts);
  bool found = false;
  for (const Finding& finding : findings) {
    found = found || (finding.check == check && finding.level == level &&
                      finding.what.find(words) != std::string::npos &&
                      finding.to_do.find(to_do) != std::string::npos);
  }
  EXPECT_TRUE(found) << words << "\n" << DoctorText(findings);
  EXPECT_EQ(IsHealthy(findings), level != Level::kProblem);
}

TEST(Doctor, WhereAllIsWellItSaysSoShortly) {
  EXPECT_EQ(
      DoctorText(Examine(Healthy())),
      "variables    ok       none is set\n"
      "agent        ok       n1 of site a, version 1.0, listens at "
      "0.0.0.0:7072\n"
      "certificate  ok       reader.pem is valid for 90 days\n"
      "coordinator  ok       head:7070 (TLS), version 1.0, term 3, answers in "
      "4.0 ms\n"
      "clock        ok       the coordinator's is 0.02 s ahead of this one\n"
      "agents       ok       2 connected, of 2 sites: a, b\n"
      "links        ok       not measured: no job runs\n"
      "address      ok       10.0.0.1:7072, can be dialled from this node "
      "itself\n"
      "peers        ok       1 of 1 can be dialled from here\n"
      "kernels      ok       for GPUs: cannot run here: no NVIDIA driver (x); "
      "used where PACTRAIN_DEVICE_PATH is device or nccl\n"
      "0 problems, 0 warnings\n");
}

TEST(Doctor, AMachineWithoutDaemonsIsFine) {
  Facts facts;
  facts.agent = absl::NotFoundError("is not there");
  facts.kernels = absl::NotFoundError("no library");
  const Findings findings = Examine(facts);
  EXPECT_TRUE(IsHealthy(findings));
  EXPECT_THAT(DoctorText(findings), HasSubstr("attach() starts one"));
}

TEST(Doctor, TheAgentOfTheNode) {
  Facts facts = Healthy();
  facts.socket_named = true;
  facts.agent = absl::NotFoundError("is not there");
  ExpectFound(facts, Level::kProblem, "agent",
              "unix:/run/pactrain/agent.sock is not there",
              "start pactrain-agent on this node");
  facts.agent = absl::UnavailableError("is there, but nobody answers (x)");
  ExpectFound(facts, Level::kProblem, "agent", "nobody answers", "start");
  facts.agent = absl::PermissionDeniedError("is the agent of user 5");
  ExpectFound(facts, Level::kProblem, "agent", "the agent of user 5",
              "run the training as the agent's user");
  facts.agent = absl::FailedPreconditionError("is no socket");
  ExpectFound(facts, Level::kProblem, "agent", "is no socket", "same release");

  facts = Healthy();
  std::strcpy(facts.agent->version, "0.9");
  ExpectFound(facts, Level::kProblem, "agent",
              "it has version 0.9, the library 1.0", "same release of both");
  facts = Healthy();
  facts.agent->connected = 0;
  ExpectFound(facts, Level::kProblem, "agent",
              "n1 of site a is not connected with its coordinator head:7070",
              "start the coordinator");
}

TEST(Doctor, sec_cert_life_alarm_AtAFifthAsTheDaemonsHaveIt) {
  Facts facts = Healthy();
  const auto left = [&](int days) {
    return base::CertificateLife{facts.now + absl::Hours(24 * (days - 100)),
                                 facts.now + absl::Hours(24 * days)};
  };
  facts.certificates[0].lives = base::CertificateLives{left(21), left(90)};
  ExpectFound(facts, Level::kOk, "certificate", "is valid for 21 days", "");
  facts.certificates[0].lives = base::CertificateLives{left(19), left(90)};
  ExpectFound(facts, Level::kWarning, "certificate",
              "is valid for 19 days, less than a fifth of its life",
              "issue a new one");
  facts.certificates[0].lives = base::CertificateLives{left(90), left(19)};
  ExpectFound(facts, Level::kWarning, "certificate",
              "the CA of reader.pem is valid for 19 days", "make a new CA");
}

TEST(Doctor, Certificates) {
  Facts facts = Healthy();
  facts.certificates[0].lives =
      absl::InvalidArgumentError("--tls-key: k is not the key of c");
  ExpectFound(facts, Level::kProblem, "certificate", "is not the key of",
              "that fit each other");
}

TEST(Doctor, Keys) {
  Facts facts = Healthy();
  facts.keys = {{"/k/job.key", 0640}, {"PACTRAIN_JOB_KEY", 0}};
  ExpectFound(facts, Level::kOk, "key", "/k/job.key, mode 0640", "");
  ExpectFound(facts, Level::kOk, "key", "in the variable PACTRAIN_JOB_KEY", "");
  facts.tls_mistake = absl::InvalidArgumentError("given beside --tls-cert");
  facts.answer = absl::UnknownError("");
  ExpectFound(facts, Level::kProblem, "key", "given beside --tls-cert",
              "not both");
  ExpectFound(facts, Level::kProblem, "coordinator", "not asked", "first");
  facts.tls_mistake = absl::InvalidArgumentError("--job-key-file: not a key");
  facts.keys[0].mode = facts.tls_mistake;
  ExpectFound(facts, Level::kProblem, "key", "--job-key-file: not a key",
              "of mode 0600");
  EXPECT_THAT(DoctorText(Examine(facts)), ::testing::Not(HasSubstr("both")));
}

TEST(Doctor, TheCoordinator) {
  Facts facts = Healthy();
  facts.answer = absl::UnavailableError(
      "coordinator x cannot be reached (the keys differ); give the other");
  ExpectFound(facts, Level::kProblem, "coordinator",
              "cannot be reached (the keys differ)", "give the other");
  facts.answer = absl::UnavailableError("its journal is full");
  ExpectFound(facts, Level::kProblem, "coordinator", "its journal is full",
              "start it, open its port to this node, or correct");
  facts.answer = absl::PermissionDeniedError("this is for a reader");
  ExpectFound(facts, Level::kProblem, "coordinator", "this is for a reader",
              "name an operator's or reader's certificate");
  facts.answer = absl::UnimplementedError("no such call");
  ExpectFound(facts, Level::kProblem, "coordinator", "no such call",
              "same release everywhere");
  facts = Healthy();
  facts.answer->set_version("0.9");
  ExpectFound(facts, Level::kProblem, "coordinator",
              "version 0.9, term 3, answers in 4.0 ms; the library has 1.0",
              "same release everywhere");
}

TEST(Doctor, Clocks) {
  Facts facts = Healthy();
  facts.clock_ahead = -absl::Seconds(6);
  ExpectFound(facts, Level::kWarning, "clock",
              "the coordinator's is 6.00 s behind this one", "NTP");
  facts.clock_ahead = absl::Minutes(6);
  ExpectFound(facts, Level::kProblem, "clock", "360.00 s ahead of", "NTP");
}

TEST(Doctor, Agents) {
  Facts facts = Healthy();
  facts.answer->mutable_agents(1)->set_connected(false);
  ExpectFound(facts, Level::kWarning, "agents",
              "n2 of site b has lost the coordinator", "whether it runs");
  facts.variables["PACTRAIN_SITES"] = "a:2,b:2";
  ExpectFound(facts, Level::kProblem, "sites",
              "no agent of site b, which PACTRAIN_SITES names, is connected",
              "start one with --site b");
  facts = Healthy();
  facts.answer->mutable_agents(1)->set_version("0.9");
  ExpectFound(facts, Level::kProblem, "agents",
              "n2 of site b has version 0.9, the coordinator 1.0",
              "same release everywhere");
  facts.answer->mutable_agents(1)->set_version("1.1");
  ExpectFound(facts, Level::kWarning, "agents",
              "n2 of site b has version 1.1, the coordinator 1.0",
              "finish the upgrade; neighbouring releases work together");
  facts = Healthy();
  facts.answer->clear_agents();
  ExpectFound(facts, Level::kProblem, "agents",
              "does not know this node's agent, n1, which uses head:7070",
              "name the same coordinator");
  facts.agent = absl::NotFoundError("is not there");
  ExpectFound(facts, Level::kWarning, "agents", "none is connected", "start");
}

TEST(Doctor, LinksAsMeasured) {
  Facts facts = Healthy();
  v1::LinkState& link = *facts.answer->add_links();
  link.set_agent("n1");
  link.set_site("a");
  link.set_peer_site("b");
  link.set_goodput_bytes_per_second(12.5e6);
  link.set_rtt_seconds(0.021);
  ExpectFound(facts, Level::kOk, "links",
              "a to b: 100 Mbit/s, 21.0 ms there and back", "");
  (*facts.answer->mutable_site_rates())["a"] = 125e6;
  ExpectFound(facts, Level::kWarning, "links", "--site-rates says 1000 Mbit/s",
              "correct the coordinator's --site-rates");
}

TEST(Doctor, WhoCanBeDialled) {
  Facts facts = Healthy();
  facts.dialled["10.0.0.1:7072"] = absl::UnavailableError("no answer");
  ExpectFound(facts, Level::kWarning, "address",
              "10.0.0.1:7072, which others are told, cannot be dialled from "
              "this node itself: no answer",
              "the agent listens at 0.0.0.0:7072");
  facts = Healthy();
  std::strcpy(facts.agent->data_address, "none");
  ExpectFound(facts, Level::kOk, "address", "nobody dials this node", "");
  facts = Healthy();
  facts.dialled["10.0.0.2:7072"] = absl::UnavailableError("no answer");
  ExpectFound(facts, Level::kWarning, "peers",
              "n2 of site b cannot be dialled at 10.0.0.2:7072: no answer",
              "fine if it can dial this node");
  std::strcpy(facts.agent->data_address, "none");
  ExpectFound(facts, Level::kProblem, "peers", "cannot be dialled at",
              "open that port to this node");
  facts.answer->mutable_agents(1)->set_data_address("none");
  ExpectFound(facts, Level::kProblem, "peers",
              "n2 of site b has no address either", "give one of the two");
}

TEST(Doctor, KernelsForGpus) {
  Facts facts = Healthy();
  facts.kernels = Kernels{true, "GPU 0, X (9.0); driver of CUDA 13.0"};
  ExpectFound(facts, Level::kOk, "kernels",
              "can run here on GPU 0, X (9.0); driver of CUDA 13.0; used", "");
  facts.kernels = absl::NotFoundError("no libpactrain_trainer.so lies here");
  ExpectFound(facts, Level::kOk, "kernels",
              "not asked, since no libpactrain_trainer.so lies here", "");
  facts.kernels = absl::FailedPreconditionError("x.so is no trainer library");
  ExpectFound(facts, Level::kWarning, "kernels", "x.so is no trainer library",
              "install the same release of library and programs");
}

TEST(Doctor, JsonHoldsTheSameFindings) {
  const Findings findings = {{"agent", Level::kProblem, "a \"x\"", "do\n"}};
  google::protobuf::Struct report;
  ASSERT_TRUE(
      google::protobuf::util::JsonStringToMessage(DoctorJson(findings), &report)
          .ok());
  EXPECT_FALSE(report.fields().at("ok").bool_value());
  const auto& check = report.fields()
                          .at("checks")
                          .list_value()
                          .values(0)
                          .struct_value()
                          .fields();
  EXPECT_EQ(check.at("level").string_value(), "problem");
  EXPECT_EQ(check.at("what").string_value(), "a \"x\"");
  EXPECT_EQ(check.at("to_do").string_value(), "do\n");
}

// What is asked, beside the coordinator.

std::string Folder() {
  std::string folder = "/tmp/pactrain-doctor-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

TEST(AskAgent, SaysWhyThereIsNoAnswer) {
  const std::string folder = Folder();
  EXPECT_THAT(AskAgent(folder + "/none.sock"),
              base::StatusIs(absl::StatusCode::kNotFound, "is not there"));
  std::ofstream(folder + "/file") << "x";
  EXPECT_THAT(
      AskAgent(folder + "/file"),
      base::StatusIs(absl::StatusCode::kFailedPrecondition, "is no socket"));
  // What a killed agent leaves.
  const std::string stale = folder + "/stale.sock";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  stale.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(fd);
  EXPECT_THAT(AskAgent(stale),
              base::StatusIs(absl::StatusCode::kUnavailable,
                             HasSubstr("nobody answers (Connection refused)")));
  std::filesystem::remove_all(folder);
}

TEST(DialAll, TellsOpenPortsFromClosedOnes) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string open = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  auto results = DialAll({open, "127.0.0.1:1", "nonsense"}, absl::Seconds(20));
  close(fd);
  EXPECT_OK(results[open]);
  EXPECT_THAT(
      results["127.0.0.1:1"],
      base::StatusIs(absl::StatusCode::kUnavailable, "Connection refused"));
  EXPECT_THAT(
      results["nonsense"],
      base::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
}

// A certificate made of a key has no end to warn of: it is made anew each day.
TEST(Gather, AKeyIsNoCertificate) {
  const std::string folder = Folder();
  const std::string file = folder + "/job.key", open = folder + "/open.key",
                    text = folder + "/text.key";
  ASSERT_OK(base::WriteNewJobKey(file));
  ASSERT_OK(base::WriteNewJobKey(open));
  chmod(open.c_str(), 0644);
  std::ofstream(text) << "x";
  chmod(text.c_str(), 0600);
  Command command;
  command.tls = base::IssueByJobKey('1', "spiffe://pactrain/operator");
  command.job_key_file = file;
  const Facts facts =
      Gather(command, {{"PACTRAIN_AGENT", "unix:" + folder + "/a.sock"},
                       {"PACTRAIN_JOB_KEY", std::string(64, '1')},
                       {"PACTRAIN_AGENT_JOB_KEY_FILE", open},
                       {"PACTRAIN_COORDINATOR_JOB_KEY_FILE", text}});
  EXPECT_TRUE(facts.certificates.empty());
  ASSERT_EQ(facts.keys.size(), 4);
  EXPECT_EQ(facts.keys[0].source, file);
  ASSERT_OK(facts.keys[0].mode);
  EXPECT_EQ(*facts.keys[0].mode, 0600);
  EXPECT_THAT(facts.keys[1].mode,
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("PACTRAIN_AGENT_JOB_KEY_FILE: " + open +
                                       " may be used by others")));
  EXPECT_THAT(facts.keys[2].mode,
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("PACTRAIN_COORDINATOR_JOB_KEY_FILE")));
  EXPECT_EQ(facts.keys[3].source, "PACTRAIN_JOB_KEY");
  std::filesystem::remove_all(folder);
}

TEST(Gather, ReadsCertificatesOfFlagsAndVariables) {
  const std::string folder = Folder();
  const base::TestCa ca(folder);
  const base::TlsFiles files = ca.Issue("r", "spiffe://pactrain/reader");
  Command command;
  command.tls = files;
  chmod(files.key.c_str(), 0644);
  const Facts facts =
      Gather(command, {{"PACTRAIN_AGENT", "unix:" + folder + "/a.sock"},
                       {"PACTRAIN_AGENT_TLS_CERT", files.cert}});
  EXPECT_EQ(facts.socket, folder + "/a.sock");
  EXPECT_TRUE(absl::IsNotFound(facts.agent.status()));
  EXPECT_TRUE(facts.coordinator.empty());
  ASSERT_EQ(facts.certificates.size(), 2);
  EXPECT_THAT(
      facts.certificates[0].lives,
      base::StatusIs(absl::StatusCode::kInvalidArgument,
                     HasSubstr("may be used by others than its owner")));
  EXPECT_THAT(facts.certificates[1].lives,
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("PACTRAIN_AGENT_TLS_KEY: not given")));
  chmod(files.key.c_str(), 0600);
  const Facts good = Gather(command, {});
  ASSERT_OK(good.certificates[0].lives);
  const absl::Duration left = good.certificates[0].lives->own.until - good.now;
  EXPECT_GT(left, absl::Minutes(50));
  EXPECT_LE(left, absl::Hours(1));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace pactrain::coordinator
