#include "trainer/cpp/config.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Variables = std::map<std::string, std::string>;

AttachConfig Config(const Variables& variables) {
  return ConfigFromEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables With(Variables more) {
  more.insert({{"PACTRAIN_AGENT", "unix:/run/agent.sock"},
               {"RANK", "1"},
               {"WORLD_SIZE", "4"}});
  return more;
}

std::string ErrorOf(const Variables& variables) {
  try {
    Config(variables);
  } catch (const PacTrainError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ConfigTest, TakesWhatIsSet) {
  const AttachConfig config =
      Config(With({{"PACTRAIN_JOB_ID", "resnet"},
                   {"PACTRAIN_SITE", "north"},
                   {"PACTRAIN_LAUNCH", "second"},
                   {"PACTRAIN_ATTACH_TIMEOUT", "2.5"}}));
  EXPECT_EQ(config.agent, "unix:/run/agent.sock");
  EXPECT_EQ(config.job, "resnet");
  EXPECT_EQ(config.site, "north");
  EXPECT_EQ(config.launch, "second");
  EXPECT_EQ(config.rank, 1u);
  EXPECT_EQ(config.world_size, 4u);
  EXPECT_EQ(config.attach_timeout_seconds, 2.5);
}

TEST(ConfigTest, RanksComeAndGoUnlessTheyAreToldToAbort) {
  const auto told = [](const char* word) {
    return Config(With({{"PACTRAIN_ON_SHRINK", word}})).on_shrink;
  };
  EXPECT_EQ(Config(With({})).on_shrink, OnShrink::kPause);
  EXPECT_EQ(told("pause"), OnShrink::kPause);
  EXPECT_EQ(told("continue"), OnShrink::kContinue);
  EXPECT_EQ(told("abort"), OnShrink::kAbort);
  EXPECT_THAT(ErrorOf(With({{"PACTRAIN_ON_SHRINK", "shrink"}})),
              StartsWith("PACTRAIN_ON_SHRINK is 'shrink'; allowed are 'pause', "
                         "'continue' and 'abort'."));
}

TEST(ConfigTest, ALaunchOfOneProcessIsOneOfItsOwn) {
  const Variables alone = {{"PACTRAIN_AGENT", "unix:/run/agent.sock"}};
  EXPECT_NE(Config(alone).launch, Config(alone).launch);
}

TEST(ConfigTest, NamesTheJobAsTheLauncherDoes) {
  EXPECT_EQ(Config(With({})).job, "default");
  EXPECT_EQ(Config(With({{"TORCHELASTIC_RUN_ID", "none"}})).job, "default");
  EXPECT_EQ(Config(With({{"TORCHELASTIC_RUN_ID", "My Run!"}})).job, "my-run");
  EXPECT_EQ(
      Config(With({{"SLURM_JOB_ID", "17"}, {"TORCHELASTIC_RUN_ID", "x"}})).job,
      "17");
}

TEST(ConfigTest, ARestartIsAnotherLaunch) {
  const auto launch = [](const char* count) {
    return Config(With({{"TORCHELASTIC_RESTART_COUNT", count}})).launch;
  };
  EXPECT_EQ(launch("0"), launch("0"));
  EXPECT_NE(launch("0"), launch("1"));
}

// The same texts are in the Python client's tests: ranks of both form a launch.
TEST(ConfigTest, NamesALaunchAsThePythonClientDoes) {
  EXPECT_EQ(Config(With({{"TORCHELASTIC_RUN_ID", "run"},
                         {"MASTER_ADDR", "localhost"},
                         {"MASTER_PORT", "29500"}}))
                .launch,
            "add15420fc907d97");
  const AttachConfig config = Config(With({{"PACTRAIN_JOB_ID", "digits"},
                                           {"PACTRAIN_SITE", "b"},
                                           {"PACTRAIN_SITES", "a:2,b:4"},
                                           {"MASTER_PORT", "29500"}}));
  EXPECT_EQ(config.launch, "a:2,b:4 6337f5861fb00270");
  EXPECT_EQ(config.site, "b");
  EXPECT_EQ(config.rank, 3u);
  EXPECT_EQ(config.world_size, 6u);
}

TEST(ConfigTest, TakesRanksFromSlurm) {
  const AttachConfig config = Config({{"PACTRAIN_AGENT", "unix:///a"},
                                      {"SLURM_PROCID", "2"},
                                      {"SLURM_STEP_NUM_TASKS", "3"}});
  EXPECT_EQ(config.agent, "unix:/a");
  EXPECT_EQ(config.rank, 2u);
  EXPECT_EQ(config.world_size, 3u);
}

TEST(ConfigTest, SaysWhatIsWrong) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("PACTRAIN_AGENT is not set"));
  EXPECT_THAT(ErrorOf(With({{"PACTRAIN_JOB_ID", "Big Job"}})),
              "PACTRAIN_JOB_ID is 'Big Job'; allowed are 1 to 63 of a-z, 0-9, "
              "'-', '.' and '_', a letter or digit first and last.\n"
              "Set PACTRAIN_JOB_ID to such a name.");
  EXPECT_THAT(ErrorOf(With({{"PACTRAIN_SITE", "-"}})),
              StartsWith("PACTRAIN_SITE is '-'"));
  EXPECT_THAT(ErrorOf(With({{"PACTRAIN_ATTACH_TIMEOUT", "soon"}})),
              HasSubstr("PACTRAIN_ATTACH_TIMEOUT is 'soon'"));
  EXPECT_THAT(ErrorOf(With({{"PACTRAIN_ATTACH_TIMEOUT", "0"}})),
              StartsWith("PACTRAIN_ATTACH_TIMEOUT is 0; allowed are 1 to "
                         "86400."));
  EXPECT_THAT(ErrorOf(With({{"PACTRAIN_LAUNCH", std::string(64, 'a')}})),
              StartsWith("PACTRAIN_LAUNCH has 64 characters; allowed are 1"));
  EXPECT_THAT(
      ErrorOf(
          {{"PACTRAIN_AGENT", "tcp:1"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}),
      StartsWith(
          "PACTRAIN_AGENT is 'tcp:1'; allowed is 'unix:' and an absolute "
          "path"));
}

TEST(ConfigTest, ChecksRanksThatAProgramGives) {
  AttachConfig config = Config(With({}));
  const auto error = [&](uint32_t rank, uint32_t world_size) -> std::string {
    config.rank = rank;
    config.world_size = world_size;
    try {
      CheckConfig(config);
    } catch (const InvalidArgument& thrown) {
      return thrown.what();
    }
    return "no error";
  };
  EXPECT_EQ(error(1023, 1024), "no error");
  for (const uint32_t count : {0u, 1025u}) {
    EXPECT_EQ(error(0, count), "world_size is " + std::to_string(count) +
                                   "; allowed are 1 to 1024.\n"
                                   "Start the job with so many processes.");
  }
  EXPECT_THAT(error(4, 4), StartsWith("rank is 4; allowed are 0 to 3."));
}

}  // namespace
}  // namespace pactrain
