#include "agent/flags.h"

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "base/crew.h"
#include "base/tls/job_key.h"
#include "base/tls/test_certs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  std::optional<Flags> flags;
  int exit_code = 0;
  std::string message;
};

// Most tests are of something else than what protects an agent.
Outcome Parse(std::vector<const char*> words,
              const char* first = "--insecure-local") {
  words.insert(words.begin(), {"pactrain-agent", first});
  Outcome outcome;
  ::testing::internal::CaptureStderr();
  outcome.flags = ParseFlags(static_cast<int>(words.size()), words.data(),
                             &outcome.exit_code);
  outcome.message = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(ParseFlags, DefaultsAreLoopbackAndTheNameAsSite) {
  const Outcome outcome = Parse({"--name", "node-1"});
  ASSERT_TRUE(outcome.flags.has_value()) << outcome.message;
  const Driver::Options& driver = outcome.flags->driver;
  EXPECT_EQ(driver.core.site, "node-1");
  EXPECT_FALSE(outcome.flags->site_given);
  EXPECT_EQ(driver.listen, "127.0.0.1:0");
  EXPECT_EQ(driver.core.step_deadline, absl::Seconds(60));
  EXPECT_EQ(driver.core.straggler_timeout, absl::Minutes(30));
  EXPECT_EQ(driver.access.group, std::nullopt);
  EXPECT_FALSE(driver.core.incarnation.empty());
}

// As whoever starts agent and coordinator at once says it.
TEST(ParseFlags, TheCoordinatorMayBeSaidOnStandardInput) {
  const auto parse = [](const std::string& input) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(write(ends[1], input.data(), input.size()),
              static_cast<ssize_t>(input.size()));
    const int before = dup(STDIN_FILENO);
    dup2(ends[0], STDIN_FILENO);
    for (const int fd : ends) close(fd);
    Outcome outcome = Parse({"--name=a", "--coordinator=-"});
    dup2(before, STDIN_FILENO);
    close(before);
    return outcome;
  };
  const Outcome said = parse("127.0.0.1:9\nmore");
  ASSERT_TRUE(said.flags.has_value()) << said.message;
  EXPECT_EQ(said.flags->driver.coordinator, "127.0.0.1:9");
  // What else is wrong is said before, and a look at the settings waits for
  // none.
  EXPECT_THAT(Parse({"--name=a", "--coordinator=-", "--listen=b"}).message,
              HasSubstr("--listen: "));
  EXPECT_EQ(Parse({"--name=a", "--coordinator=-", "--print-config"}).exit_code,
            0);
  for (const auto& [input, words] : std::map<std::string, const char*>{
           {"", "no line came on standard input before its end"},
           {"\n", "on standard input: address '' has no port"},
           {std::string(5000, 'x'), "' is too long"}}) {
    const Outcome refused = parse(input);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.message, HasSubstr(words));
    EXPECT_LT(refused.message.size(), 1000u);
  }
  // Closed, with another descriptor in its place; and somebody who is silent.
  const int before = dup(STDIN_FILENO), other = eventfd(0, 0);
  dup2(other, STDIN_FILENO);
  EXPECT_THAT(Parse({"--name=a", "--coordinator=-"}).message,
              HasSubstr("no line came on standard input which is closed"));
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  dup2(ends[0], STDIN_FILENO);
  EXPECT_THAT(
      Parse({"--name=a", "--coordinator=-", "--connect-timeout=1s"}).message,
      HasSubstr("no line came on standard input within 1s"));
  dup2(before, STDIN_FILENO);
  for (const int fd : {before, other, ends[0], ends[1]}) close(fd);
}

TEST(ParseFlags, SecPlainTextIsNotSpokenUnasked) {
  const Outcome refused = Parse({}, "--name=a");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.message,
              HasSubstr("--job-key-file: no key and no certificates are given, "
                        "so every user of this machine could see and change"));
  EXPECT_THAT(refused.message, HasSubstr("or, where all users of the machine "
                                         "are trusted, --insecure-local"));
  EXPECT_TRUE(Parse({"--insecure-network"}, "--name=a").flags.has_value());
}

TEST(ParseFlags, ReadsEveryFlag) {
  const Outcome outcome =
      Parse({"--name=a", "--site=eu", "--coordinator=127.0.0.1:7070",
             "--socket=unix:/run/x.sock", "--socket-group=4321",
             "--listen=127.0.0.1:5", "--advertise-address=127.0.0.1:6",
             "--listen-metrics=127.0.0.1:7", "--step-deadline=2m",
             "--straggler-timeout=1h", "--connect-timeout=inf",
             "--sum-threads=3", "--renice=4", "--egress-limit=us=100mbit",
             "--egress-limit=*=1gbit", "--log-level=debug"});
  ASSERT_TRUE(outcome.flags.has_value()) << outcome.message;
  Driver::Options driver = outcome.flags->driver;
  EXPECT_EQ(driver.core.site, "eu");
  EXPECT_TRUE(outcome.flags->site_given);
  EXPECT_EQ(driver.coordinator, "127.0.0.1:7070");
  EXPECT_EQ(driver.socket_path, "/run/x.sock");
  EXPECT_EQ(driver.access.group, 4321u);
  EXPECT_EQ(driver.listen, "127.0.0.1:5");
  EXPECT_EQ(driver.advertise_address, "127.0.0.1:6");
  EXPECT_EQ(outcome.flags->listen_metrics.ToString(), "127.0.0.1:7");
  EXPECT_EQ(driver.core.step_deadline, absl::Minutes(2));
  EXPECT_EQ(driver.core.straggler_timeout, absl::Hours(1));
  EXPECT_EQ(driver.connect_timeout, absl::InfiniteDuration());
  EXPECT_EQ(driver.sum_threads, 3);
  EXPECT_EQ(outcome.flags->renice, 4);
  EXPECT_EQ(driver.egress.ForSite("us")->bytes_per_second(), 12.5e6);
  EXPECT_EQ(driver.egress.ForSite("asia")->bytes_per_second(), 125e6);
  EXPECT_EQ(outcome.flags->log_level, "debug");
}

TEST(ParseFlags, SumsTakeThreadsByTheProcessorsUnlessTold) {
  EXPECT_EQ(Parse({"--name=a"}).flags->driver.sum_threads,
            base::ThreadsBesideOthers(base::Processors()));
  EXPECT_EQ(Parse({"--name=a", "--sum-threads=64"}).flags->driver.sum_threads,
            64);
  for (const char* bad : {"--sum-threads=-1", "--sum-threads=65"}) {
    EXPECT_THAT(Parse({"--name=a", bad}).message,
                HasSubstr("is not a whole number from 0 to 64"));
  }
}

TEST(ParseFlags, AgentsGoAheadOfTrainersUnlessTold) {
  EXPECT_EQ(Parse({"--name=a"}).flags->renice, 10);
  EXPECT_EQ(Parse({"--name=a", "--renice=0"}).flags->renice, 0);
  EXPECT_EQ(Parse({"--name=a", "--renice=20"}).flags->renice, 20);
  EXPECT_THAT(Parse({"--name=a", "--renice=21"}).message,
              HasSubstr("is not a whole number from 0 to 20"));
}

TEST(ParseFlags, OneAddressMayHaveAllConnectionsThatThereCanBe) {
  EXPECT_EQ(Parse({"--name=a"}).flags->driver.connections_per_source,
            protocol::kMaxConnectionsPerSource);
  const auto parse = [](int connections) {
    return Parse(
        {"--name=a",
         absl::StrCat("--connections-per-source=", connections).c_str()});
  };
  const Outcome most = parse(protocol::kMaxPeerConnections);
  ASSERT_TRUE(most.flags.has_value()) << most.message;
  EXPECT_EQ(most.flags->driver.connections_per_source,
            protocol::kMaxPeerConnections);
  EXPECT_THAT(parse(protocol::kMaxPeerConnections + 1).message,
              HasSubstr("--connections-per-source: '257' is not"));
}

TEST(ParseFlags, ListensAtARangeAndAdvertisesAHostOrNothing) {
  for (const char* address : {"127.0.0.1", "localhost", "[::1]", "none"}) {
    const std::string advertise = absl::StrCat("--advertise-address=", address);
    const Outcome outcome =
        Parse({"--name=a", "--listen=127.0.0.1:7072-7079", advertise.c_str()});
    ASSERT_TRUE(outcome.flags.has_value()) << outcome.message;
    EXPECT_EQ(outcome.flags->driver.listen, "127.0.0.1:7072-7079");
    EXPECT_EQ(outcome.flags->driver.advertise_address, address);
  }
}

TEST(ParseFlags, AnAdvertisedHostWithoutAPortIsQuotedAsItWasGiven) {
  EXPECT_THAT(Parse({"--name=a", "--advertise-address=0.0.0.0"}).message,
              HasSubstr("nobody can dial '0.0.0.0'; give the address"));
  EXPECT_THAT(Parse({"--name=a", "--advertise-address=10.0.0.1"}).message,
              HasSubstr("address '10.0.0.1' is not loopback"));
  EXPECT_THAT(Parse({"--name=a", "--advertise-address=nat.example:1"}).message,
              HasSubstr("names a host, which needs TLS"));
}

TEST(ParseFlags, AMistakeIsOneLineThatNamesIt) {
  const std::vector<std::vector<const char*>> mistakes = {
      {"--bogus"},
      {"--name=Not A Name"},
      {"--site=no/site"},
      {"--coordinator=nowhere"},
      {"--coordinator=10.0.0.1:7070"},
      {"--coordinator=127.0.0.1:0"},
      {"--advertise-address=10.0.0.1:7070"},
      {"--connect-timeout=0"},
      {"--socket=relative.sock"},
      {"--socket-group=no-such-group"},
      {"--listen=0.0.0.0:1"},
      {"--listen=127.0.0.1:8-7"},
      {"--advertise-address=10.0.0.1"},
      {"--advertise-address=a b"},
      {"--listen-metrics=10.0.0.1:1"},
      {"--step-deadline=soon"},
      {"--step-deadline=1ms"},
      {"--straggler-timeout=200h"},
      {"--step-deadline=", "--site=x"},
      {"--socket=", "--site=x"},
      {"--egress-limit=fast"},
  };
  for (const auto& mistake : mistakes) {
    std::vector<const char*> words = {"--name=a"};
    if (std::string(mistake[0]).rfind("--name", 0) == 0) words.clear();
    words.insert(words.end(), mistake.begin(), mistake.end());
    const Outcome outcome = Parse(words);
    EXPECT_FALSE(outcome.flags.has_value()) << mistake[0];
    EXPECT_NE(outcome.exit_code, 0) << mistake[0];
    EXPECT_THAT(outcome.message, ::testing::StartsWith("pactrain-agent: "));
    EXPECT_EQ(outcome.message.find('\n'), outcome.message.size() - 1)
        << outcome.message;
    const std::string flag(mistake[0]);
    EXPECT_THAT(outcome.message, HasSubstr(flag.substr(0, flag.find('='))));
    EXPECT_THAT(outcome.message, HasSubstr(flag.substr(flag.find('=') + 1)));
  }
}

TEST(ParseFlags, AMistakeInAFileNamesItsLine) {
  const std::string path = ::testing::TempDir() + "/agent.yaml";
  const std::string flag = "--config=" + path;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"listen: 10.0.0.1:1", "listen: address '10.0.0.1:1' is not"},
      {"listen: 0.0.0.0:1", "listen: address '0.0.0.0:1' is not"},
      {"coordinator: nowhere", "coordinator: address 'nowhere' has no port"},
      {"advertise-address: 127.0.0.1:0", "advertise-address: nobody can dial"},
      {"socket: a.sock", "socket: 'a.sock' is not unix: and"},
      {"site: No", "site: \"No\" is not a name"},
      {"step-deadline: 60", "step-deadline: '60' is not a duration"},
      {"step-deadline: 1ms",
       "step-deadline: '1ms' is not a duration from 100ms to 24h"},
      {"step-deadline: inf", "step-deadline: 'inf' is not a duration"},
      {"connect-timeout: ''", "connect-timeout: '' is not a duration from 1ms"},
      {"egress-limit: [fast]", "egress-limit: 'fast': no '='"},
      {"egress-limit: [a=1gbit, a=2gbit]",
       "egress-limit: the limit of site 'a' is given twice"},
  };
  for (const auto& [line, message] : cases) {
    std::ofstream(path) << "name: a\n" << line << "\n";
    const Outcome outcome = Parse({flag.c_str()});
    EXPECT_FALSE(outcome.flags.has_value()) << line;
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.message,
                HasSubstr("pactrain-agent: " + path + ":2: " + message));
  }
}

TEST(ParseFlags, WithItsOwnCertificateAnAgentMayUseAnyAddress) {
  const base::TestCa ca(::testing::TempDir());
  const base::TlsFiles files = ca.Issue("a", "spiffe://pactrain/agent/a");
  const std::string cert = "--tls-cert=" + files.cert;
  const std::string key = "--tls-key=" + files.key;
  const std::string own_ca = "--tls-ca=" + files.ca;
  const auto parse = [&](const char* name) {
    return Parse({name, cert.c_str(), key.c_str(), own_ca.c_str(),
                  "--coordinator=head.example:7070", "--listen=0.0.0.0:1",
                  "--advertise-address=192.0.2.1:1"});
  };
  const Outcome outcome = parse("--name=a");
  ASSERT_TRUE(outcome.flags.has_value()) << outcome.message;
  EXPECT_EQ(outcome.flags->driver.tls.cert, files.cert);
  EXPECT_THAT(parse("--name=b").message,
              HasSubstr("--tls-cert: its certificate is of "
                        "spiffe://pactrain/agent/a, not of "
                        "spiffe://pactrain/agent/b"));
  EXPECT_THAT(Parse({"--name=a", cert.c_str()}).message,
              HasSubstr("tls-key: not given; TLS needs all of"));
}

// /metrics is for this machine alone, but for who has TLS and a token.
TEST(ParseFlags, sec_metrics_bind) {
  const Outcome outcome = Parse({"--name=a"});
  ASSERT_TRUE(outcome.flags.has_value()) << outcome.message;
  EXPECT_EQ(outcome.flags->listen_metrics.host, "127.0.0.1");
  const base::TestCa ca(::testing::TempDir());
  const base::TlsFiles files = ca.Issue("a", "spiffe://pactrain/agent/a");
  const std::string cert = "--tls-cert=" + files.cert;
  const std::string key = "--tls-key=" + files.key;
  const std::string own_ca = "--tls-ca=" + files.ca;
  EXPECT_THAT(Parse({"--name=a", cert.c_str(), key.c_str(), own_ca.c_str(),
                     "--listen-metrics=0.0.0.0:7071"})
                  .message,
              HasSubstr("--listen-metrics: address '0.0.0.0:7071'"));
  const std::string token = ::testing::TempDir() + "/agent-metrics-token";
  std::filesystem::remove(token);
  std::ofstream(token) << "0123456789abcdef\n";
  std::filesystem::permissions(token, std::filesystem::perms::owner_read);
  const std::string with_token = "--metrics-token-file=" + token;
  EXPECT_THAT(
      Parse({"--name=a", with_token.c_str(), "--listen-metrics=0.0.0.0:7071"})
          .message,
      HasSubstr("give --tls-cert"));
  EXPECT_TRUE(Parse({"--name=a", cert.c_str(), key.c_str(), own_ca.c_str(),
                     with_token.c_str(), "--listen-metrics=0.0.0.0:7071"})
                  .flags.has_value());
}

TEST(ParseFlags, WithAJobKeyAnAgentMayUseAnyAddressUnderItsName) {
  const std::string path = ::testing::TempDir() + "/agent-job.key";
  std::filesystem::remove(path);
  ASSERT_TRUE(base::WriteNewJobKey(path).ok());
  const std::string key = "--job-key-file=" + path;
  const Outcome outcome =
      Parse({"--name=a", key.c_str(), "--coordinator=head.example:7070",
             "--listen=192.0.2.1:1"});
  ASSERT_TRUE(outcome.flags.has_value()) << outcome.message;
  const auto uris = base::CheckTlsFiles(outcome.flags->driver.tls, {});
  ASSERT_TRUE(uris.ok());
  EXPECT_EQ(*uris, std::vector<std::string>({"spiffe://pactrain/agent/a"}));
  EXPECT_THAT(Parse({"--name=a", key.c_str(), "--tls-cert=c"}).message,
              HasSubstr("--job-key-file: given beside --tls-cert; allowed"));
  chmod(path.c_str(), 0644);
  EXPECT_THAT(Parse({"--name=a", key.c_str()}).message,
              HasSubstr("--job-key-file: " + path + " may be used by others"));
}

TEST(ParseFlags, TheSampleFileIsAccepted) {
  const Outcome outcome =
      Parse({"--config=deploy/pactrain-agent.yaml", "--name=a"});
  ASSERT_TRUE(outcome.flags.has_value()) << outcome.message;
  EXPECT_EQ(outcome.flags->driver.core.site, "a");
}

TEST(ParseFlags, TheSettingsPageTellsTheDefaults) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Parse({"--name=a", "--print-config"}).exit_code, 0);
  std::istringstream printed(::testing::internal::GetCapturedStdout());
  std::stringstream page;
  page << std::ifstream("docs/settings.md").rdbuf();
  int defaults = 0;
  for (std::string line; std::getline(printed, line);) {
    const size_t colon = line.find(": "), end = line.find("  # default");
    if (end == line.npos || line[colon + 2] == '[') continue;
    EXPECT_THAT(page.str(),
                HasSubstr("| `" + line.substr(0, colon) + "` | " +
                          line.substr(colon + 2, end - colon - 2) + " |"));
    ++defaults;
  }
  EXPECT_GT(defaults, 5);
}

}  // namespace
}  // namespace pactrain::agent
