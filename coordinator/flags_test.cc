#include "coordinator/flags.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/test_folder.h"
#include "base/tls/test_certs.h"
#include "base/version.h"
#include "coordinator/core/grants.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;

// A policy file that grants all.
std::string AllowAll(const std::string& folder) {
  const std::string path = folder + "/all.yaml";
  std::ofstream(path) << kAllGranted;
  return path;
}

// Most tests are of something else than what protects a coordinator.
std::optional<Flags> Parse(std::vector<const char*> arguments, int* exit_code,
                           const char* first = "--insecure-local") {
  arguments.insert(arguments.begin(), {"pactrain-coordinator", first});
  return ParseFlags(static_cast<int>(arguments.size()), arguments.data(),
                    exit_code);
}

TEST(Flags, DefaultsAreLoopbackAndFp32) {
  int exit_code = -1;
  const auto flags = Parse({}, &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_EQ(flags->listen.ToString(), "127.0.0.1:7070");
  EXPECT_EQ(flags->listen_metrics.ToString(), "127.0.0.1:7071");
  EXPECT_EQ(flags->core.codec, protocol::Codec::kFp32);
  EXPECT_TRUE(flags->core.links.empty());
}

TEST(Flags, SecPlainTextIsNotSpokenUnasked) {
  int exit_code = -1;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(Parse({}, &exit_code, "--cluster=a").has_value());
  EXPECT_EQ(exit_code, 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("pactrain-coordinator: --job-key-file: no key and no "
                        "certificates are given, so every user"));
  EXPECT_TRUE(Parse({}, &exit_code, "--insecure-network").has_value());
}

TEST(Flags, ThereIsAPageOnlyWhereOneIsAskedFor) {
  int exit_code = -1;
  EXPECT_FALSE(Parse({}, &exit_code)->listen_page.has_value());
  EXPECT_FALSE(Parse({"--listen-page="}, &exit_code)->listen_page.has_value());
  const auto flags = Parse(
      {"--listen-page=127.0.0.1:7072", "--price-per-gb=0.08"}, &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_EQ(flags->listen_page->ToString(), "127.0.0.1:7072");
  EXPECT_EQ(flags->price_per_gb, 0.08);
}

TEST(Flags, LinksSplitAtTheDashOrTheColon) {
  int exit_code = -1;
  const auto flags =
      Parse({"--links", "a-b,b:site-c", "--codec", "bf16"}, &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_THAT(flags->core.links,
              ::testing::ElementsAre(Pair("a", "b"), Pair("b", "site-c")));
  EXPECT_EQ(flags->core.codec, protocol::Codec::kBf16);
}

TEST(Flags, OneAddressMayHaveAllConnectionsThatThereCanBe) {
  int exit_code = -1;
  EXPECT_EQ(Parse({}, &exit_code)->connections_per_source,
            protocol::kMaxConnectionsPerSource);
  const auto setting = [](int connections) {
    return absl::StrCat("--connections-per-source=", connections);
  };
  const auto flags =
      Parse({setting(protocol::kMaxConnections).c_str()}, &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_EQ(flags->connections_per_source, protocol::kMaxConnections);
  EXPECT_FALSE(
      Parse({setting(protocol::kMaxConnections + 1).c_str()}, &exit_code)
          .has_value());
}

TEST(Flags, AMistakeIsOneMessageThatNamesIt) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> kCases = {
      {{"--no-such-flag"}, "--no-such-flag"},
      {{"--listen", "0.0.0.0:7070"}, "not loopback"},
      {{"--listen", "nowhere"}, "nowhere"},
      {{"--listen-metrics", "10.0.0.1:1"}, "10.0.0.1:1"},
      {{"--listen-page", "10.0.0.1:1"}, "10.0.0.1:1"},
      {{"--listen-page", "127.0.0.1:0", "--page-token-file=/nowhere"},
       "--page-token-file: /nowhere cannot be read"},
      {{"--page-token-file=/nowhere"}, "give listen-page too"},
      {{"--price-per-gb=-1"}, "--price-per-gb: '-1' is not"},
      {{"--cluster", "No Name"}, "--cluster"},
      {{"--state-dir", ""}, "--state-dir"},
      {{"--codec", "int8"}, "int8"},
      {{"--links", "a-b-c"}, "a-b-c"},
      {{"--links", "a-b,b-a"}, "the link 'b-a' is there twice"},
      {{"--site-rates", "a=1"}, "--site-rates: 'a=1': the rate has no unit"},
      {{"--site-rates", "a"}, "write SITE=RATE"},
      {{"--site-rates", "a=1gbit,a=2gbit"}, "the rate of site 'a' is there"},
      {{"--site-rates", "A=1gbit"}, "--site-rates: site: "},
      {{"--links", "a-b", "--site-rates", "a=1gbit"}, "links are given, too"},
      {{"--epoch-steps", "0"}, "--epoch-steps: '0' is not a whole number"},
      {{"--risk", "bold"}, "--risk: 'bold' is not exact"},
      {{"--risk", "2"}, "--risk: '2' is not exact"},
      {{"--risk=-1"}, "--risk: '-1' is not exact"},
      {{"--risk=nan"}, "--risk: 'nan' is not exact"},
      {{"--risk=", "--cluster=a"}, "--risk: '' is not exact"},
      {{"--risk", "", "--cluster=a"}, "--risk: '' is not exact"},
      {{"--min-exchange-share", "-1"}, "--min-exchange-share: '-1' is not"},
      {{"--min-exchange-share=2"}, "--min-exchange-share: '2' is not"},
      {{"--norm-alarm=1"}, "--norm-alarm: '1' is no factor"},
      {{"--norm-alarm=-1"}, "--norm-alarm: '-1' is not"},
      {{"--presume-dead-after=9s"},
       "--presume-dead-after: '9s' is neither never nor a time"},
      {{"--connections-per-source=0"}, "--connections-per-source: '0' is not"},
      {{"--cluster=", "--risk=safe"}, "--cluster"},
      {{"--epoch-steps", "many"}, "many"},
  };
  for (const auto& [arguments, what] : kCases) {
    int exit_code = 0;
    ::testing::internal::CaptureStderr();
    const auto flags = Parse(arguments, &exit_code);
    const std::string message = ::testing::internal::GetCapturedStderr();
    EXPECT_FALSE(flags.has_value()) << what;
    EXPECT_EQ(exit_code, 2) << what;
    EXPECT_THAT(message, HasSubstr(what));
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
  }
}

TEST(Flags, VersionEndsWellWithTheVersion) {
  int exit_code = -1;
  ::testing::internal::CaptureStdout();
  EXPECT_FALSE(Parse({"--version"}, &exit_code).has_value());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr(base::kVersion));
  EXPECT_EQ(exit_code, 0);
}

TEST(Flags, AMistakeInAFileNamesItsLine) {
  const std::string path = ::testing::TempDir() + "/coordinator.yaml";
  const std::string flag = "--config=" + path;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"listen: 0.0.0.0:7070",
       "listen: address '0.0.0.0:7070' is not loopback"},
      {"listen-metrics: nowhere", "listen-metrics: address 'nowhere'"},
      {"cluster: No Name", "cluster: \"No Name\" is not a name"},
      {"state-dir: ''", "state-dir: must not be empty"},
      {"links: [a-b-c]", "links: 'a-b-c' is not two sites"},
      {"links: [a-b, a-b]", "links: the link 'a-b' is there twice"},
      {"epoch-steps: 0", "epoch-steps: '0' is not a whole number from 1 to"},
      {"risk: bold", "risk: 'bold' is not exact"},
      {"risk: -1", "risk: '-1' is not exact"},
      {"risk: ''", "risk: '' is not exact"},
      {"min-exchange-share: 2",
       "min-exchange-share: '2' is not a number from 0 to 1"},
  };
  for (const auto& [line, message] : cases) {
    std::ofstream(path) << "\n" << line << "\n";
    int exit_code = 0;
    ::testing::internal::CaptureStderr();
    EXPECT_FALSE(Parse({flag.c_str()}, &exit_code).has_value()) << line;
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("pactrain-coordinator: " + path + ":2: " + message));
    EXPECT_EQ(exit_code, 2);
  }
}

TEST(Flags, AMistakeInAVariableNamesIt) {
  setenv("PACTRAIN_COORDINATOR_RISK", "-1", /*overwrite=*/1);
  int exit_code = 0;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(Parse({}, &exit_code).has_value());
  unsetenv("PACTRAIN_COORDINATOR_RISK");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("PACTRAIN_COORDINATOR_RISK: '-1' is not exact"));
  EXPECT_EQ(exit_code, 2);
}

TEST(Flags, WithCertificatesAddressesBeyondLoopbackAreFine) {
  const base::TestCa ca(::testing::TempDir());
  const base::TlsFiles files =
      ca.Issue("coordinator", "spiffe://pactrain/coordinator");
  const std::string cert = "--tls-cert=" + files.cert;
  const std::string key = "--tls-key=" + files.key;
  const std::string own_ca = "--tls-ca=" + files.ca;
  const std::string policy = "--policy-file=" + AllowAll(::testing::TempDir());
  int exit_code = -1;
  const auto flags = Parse({cert.c_str(), key.c_str(), own_ca.c_str(),
                            policy.c_str(), "--listen=0.0.0.0:7070"},
                           &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_EQ(flags->tls.cert, files.cert);
}

// With certificates nobody may do what no policy says.
TEST(Flags, sec_CertificatesNeedAPolicy) {
  const std::string folder = base::MakeTestFolder();
  const base::TlsFiles files =
      base::TestCa(folder).Issue("c", "spiffe://pactrain/coordinator");
  const std::string cert = "--tls-cert=" + files.cert;
  const std::string key = "--tls-key=" + files.key;
  const std::string ca = "--tls-ca=" + files.ca;
  int exit_code = 0;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(
      Parse({cert.c_str(), key.c_str(), ca.c_str()}, &exit_code).has_value());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(exit_code, 2);
  EXPECT_THAT(said, HasSubstr("--tls-cert: certificates need a policy-file"));
  // What is printed after the first line is that file.
  const std::string printed = folder + "/printed.yaml";
  std::ofstream(printed) << said.substr(said.find('\n') + 1);
  const std::string policy = "--policy-file=" + printed;
  const auto flags = Parse(
      {cert.c_str(), key.c_str(), ca.c_str(), policy.c_str()}, &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_EQ(flags->policy_file, printed);
}

TEST(Flags, sec_APolicyThatIsNoneIsAMistake) {
  const std::string folder = base::MakeTestFolder();
  const std::string path = folder + "/policy.yaml";
  const std::string policy = "--policy-file=" + path;
  const std::string key = folder + "/job.key";
  std::ofstream(key) << std::string(64, '1');
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  const std::string job_key = "--job-key-file=" + key;
  const std::vector<std::pair<std::string, std::string>> kCases = {
      {"chnge: []", path + ":1: unknown key 'chnge'; did you mean change?"},
      {"# mine\nrun: [a=b]", "--policy-file: " + path + ": run: 'a=b' is no"},
      {"run: *x", path + ":1: not YAML"}};
  for (const auto& [contents, what] : kCases) {
    std::ofstream(path) << contents;
    int exit_code = 0;
    ::testing::internal::CaptureStderr();
    EXPECT_FALSE(
        Parse({job_key.c_str(), policy.c_str()}, &exit_code).has_value());
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(what));
  }
  int exit_code = 0;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(Parse({policy.c_str()}, &exit_code).has_value());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("--policy-file: without certificates"));
}

// /metrics and the page are for this machine alone, but for who has TLS and a
// token.
class Readers : public ::testing::TestWithParam<std::string> {
 protected:
  // What is said of arguments that are refused; empty: they are not.
  static std::string Refusal(std::vector<std::string> arguments) {
    std::vector<const char*> words;
    for (const std::string& argument : arguments) {
      words.push_back(argument.c_str());
    }
    int exit_code = -1;
    ::testing::internal::CaptureStderr();
    const bool fine = Parse(words, &exit_code).has_value();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(fine, said.empty());
    return said;
  }
};

TEST_P(Readers, sec_bind) {
  const std::string folder = base::MakeTestFolder();
  const base::TestCa ca(folder);
  const base::TlsFiles files =
      ca.Issue("coordinator", "spiffe://pactrain/coordinator");
  const std::vector<std::string> tls = {
      "--tls-cert=" + files.cert, "--tls-key=" + files.key,
      "--tls-ca=" + files.ca, "--policy-file=" + AllowAll(folder)};
  const std::string token = folder + "/token";
  std::ofstream(token) << "0123456789abcdef\n";
  std::filesystem::permissions(token, std::filesystem::perms::owner_read);
  const std::string listen = "--listen-" + GetParam() + "=0.0.0.0:7071";
  const std::string with_token = "--" + GetParam() + "-token-file=" + token;
  const auto and_tls = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), tls.begin(), tls.end());
    return arguments;
  };
  EXPECT_THAT(Refusal(and_tls({listen})),
              HasSubstr("--listen-" + GetParam() +
                        ": address '0.0.0.0:7071' is not loopback"));
  EXPECT_THAT(Refusal(and_tls({listen})),
              HasSubstr("give --" + GetParam() + "-token-file, and --tls"));
  EXPECT_THAT(Refusal({listen, with_token}), HasSubstr("give --tls-cert"));
  EXPECT_EQ(Refusal(and_tls({listen, with_token})), "");
  std::filesystem::permissions(token, std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  EXPECT_THAT(Refusal(and_tls({listen, with_token})),
              HasSubstr("--" + GetParam() + "-token-file: "));
}
INSTANTIATE_TEST_SUITE_P(MetricsAndPage, Readers,
                         ::testing::Values("metrics", "page"));

TEST(Flags, CertificatesThatAreNotACoordinatorsAreAMistake) {
  const base::TestCa ca(::testing::TempDir());
  const base::TlsFiles files = ca.Issue("a", "spiffe://pactrain/agent/a");
  const std::string cert = "--tls-cert=" + files.cert;
  const std::string key = "--tls-key=" + files.key;
  const std::string own_ca = "--tls-ca=" + files.ca;
  const std::vector<std::pair<std::vector<const char*>, const char*>> kCases = {
      {{cert.c_str(), key.c_str()}, "tls-ca: not given; TLS needs all of"},
      {{cert.c_str(), key.c_str(), own_ca.c_str()},
       "--tls-cert: its certificate is of spiffe://pactrain/agent/a, not of "
       "spiffe://pactrain/coordinator"},
  };
  for (const auto& [arguments, what] : kCases) {
    int exit_code = 0;
    ::testing::internal::CaptureStderr();
    EXPECT_FALSE(Parse(arguments, &exit_code).has_value()) << what;
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(what));
    EXPECT_EQ(exit_code, 2);
  }
}

TEST(Flags, WithAJobKeyAddressesBeyondLoopbackAreFine) {
  setenv("PACTRAIN_JOB_KEY", std::string(64, '1').c_str(), /*overwrite=*/1);
  int exit_code = -1;
  const auto flags = Parse({"--listen=0.0.0.0:7070"}, &exit_code);
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(Parse({"--job-key-file=/f"}, &exit_code).has_value());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("--job-key-file: given beside PACTRAIN_JOB_KEY"));
  // A key is not printed.
  ::testing::internal::CaptureStdout();
  EXPECT_FALSE(Parse({"--print-config"}, &exit_code).has_value());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              ::testing::Not(HasSubstr("1111")));
  unsetenv("PACTRAIN_JOB_KEY");
  ASSERT_TRUE(flags.has_value());
  EXPECT_TRUE(flags->tls.given());
}

TEST(Flags, TheSampleFileIsAccepted) {
  int exit_code = -1;
  const auto flags =
      Parse({"--config=deploy/pactrain-coordinator.yaml"}, &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_EQ(flags->cluster, "prod");
}

TEST(Flags, TheSettingsPageTellsTheDefaults) {
  int exit_code = -1;
  ::testing::internal::CaptureStdout();
  EXPECT_FALSE(Parse({"--print-config"}, &exit_code).has_value());
  EXPECT_EQ(exit_code, 0);
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

TEST(Flags, AListOfRevokedCertificatesGoesWithACa) {
  const std::string folder = base::MakeTestFolder();
  const base::TestCa ca(folder);
  const base::TlsFiles files =
      ca.Issue("coordinator", "spiffe://pactrain/coordinator");
  std::ofstream(folder + "/crl.pem") << ca.Revoke({});
  const std::string crl = "--crl-file=" + folder + "/crl.pem";
  int exit_code = -1;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(Parse({crl.c_str()}, &exit_code).has_value());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("--crl-file: only a CA takes certificates back"));
  const std::string cert = "--tls-cert=" + files.cert,
                    key = "--tls-key=" + files.key, in = "--tls-ca=" + files.ca,
                    policy = "--policy-file=" + AllowAll(folder);
  const auto flags = Parse(
      {crl.c_str(), cert.c_str(), key.c_str(), in.c_str(), policy.c_str()},
      &exit_code);
  ASSERT_TRUE(flags.has_value());
  EXPECT_EQ(flags->crl_file, folder + "/crl.pem");
}

}  // namespace
}  // namespace pactrain::coordinator
