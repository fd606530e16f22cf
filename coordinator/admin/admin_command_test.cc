// The command line itself, keys, and completion.
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/test_folder.h"
#include "base/tls/job_keys.h"
#include "coordinator/admin/test_admin.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(AdminNewKey, MakesAFileThatDaemonsTake) {
  const std::string path = ::testing::TempDir() + "/new.key";
  std::filesystem::remove(path);
  const Outcome made = Tool({"new-key", path.c_str()});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_OK(base::JobKeys::FromFile("--job-key-file", path));
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
  ASSERT_OK_AND_ASSIGN(const base::JobKeys keys,
                       base::JobKeys::FromFile("--job-key-file", job));
  EXPECT_EQ(keys.host(), "vision.job.pactrain");
  EXPECT_THAT(made.out, HasSubstr("key/" + keys.Shown(absl::Now()).id() +
                                  ", of job vision alone"));
  const std::string other = folder + "/other.key";
  const Outcome again =
      Tool({"new-key", "--job", "text", "--from", job.c_str(), other.c_str()});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("--from: " + job + " is a key of vision"));
}

TEST(AdminRotateKey, SaysWhatHappensWhenAndWhatToDo) {
  const std::string path = base::MakeTestFolder() + "/job.key";
  ASSERT_EQ(Tool({"new-key", path.c_str()}).exit_code, 0);
  for (const char* bad : {"yesterday", "-5m", "2020-01-31T12:00:00Z"}) {
    const std::string at = std::string("--at=") + bad;
    const Outcome refused = Tool({"rotate-key", path.c_str(), at.c_str()});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("--at: '" + std::string(bad)));
  }
  const Outcome made =
      Tool({"rotate-key", path.c_str(), "--at", "30m", "--overlap", "2h"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("bring it to every machine of the job"));
  ASSERT_OK_AND_ASSIGN(const base::JobKeys keys,
                       base::JobKeys::FromFile("--job-key-file", path));
  const absl::Time now = absl::Now();
  EXPECT_EQ(keys.Taken(now).size(), 2u);
  EXPECT_NE(keys.Shown(now).id(), keys.Shown(now + absl::Minutes(31)).id());
  EXPECT_EQ(keys.Taken(now + absl::Minutes(151)).size(), 1u);
  const Outcome again = Tool({"rotate-key", path.c_str()});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr(path + " is being changed already"));
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
       {{"agnets"}, "'agnets' is no command; did you mean agents? a command"},
       {{"drain", "--forc", "a"},
        "unknown flag '--forc'; did you mean --force? allowed are --help, "},
       {{"jobs", "--jobkey-file=f"}, "did you mean --job-key-file? allowed"},
       {{"jobs", "all"}, "not expected: all"},
       {{"--coordinator"}, "--coordinator: 1 required TEXT missing"},
       {{"drain", "No Name"}, "AGENT: \"No Name\" is not a name"},
       {{"undrain", "No Name"}, "AGENT: \"No Name\" is not a name"},
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
