#include "config/load.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "config/small_file.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::config {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() {
    config_.set_listen("127.0.0.1:7070");
    config_.set_epoch_steps(50);
    config_.set_connections_per_source(32);
    config_.set_min_exchange_share(0.1);
    config_.set_codec("fp32");
    config_.set_log_level("info");
  }
  ~LoadTest() override {
    for (const std::string& name : variables_) unsetenv(name.c_str());
  }

  void SetVariable(const std::string& name, const std::string& text) {
    setenv(name.c_str(), text.c_str(), /*overwrite=*/1);
    variables_.push_back(name);
  }

  std::string WriteFile(const std::string& contents) {
    const std::string path = ::testing::TempDir() + "/settings.yaml";
    std::ofstream(path, std::ios::trunc) << contents;
    return path;
  }

  // What went to standard output and error is in out_ and error_.
  bool Run(std::vector<std::string> words, const absl::Status& check = {}) {
    std::vector<const char*> argv = {"pactrain-test"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    exit_code_ = -1;
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const bool start = Load(
        {"pactrain-test", "tests.", "PT_TEST"}, static_cast<int>(argv.size()),
        argv.data(), config_,
        [&](const Settings& settings) {
          listen_from_ = settings.Where("listen");
          return check;
        },
        &exit_code_);
    out_ = ::testing::internal::GetCapturedStdout();
    error_ = ::testing::internal::GetCapturedStderr();
    return start;
  }

  v1::CoordinatorConfig config_;
  std::vector<std::string> variables_;
  std::string listen_from_, out_, error_;
  int exit_code_ = -1;
};

TEST_F(LoadTest, FlagsGoBeforeVariablesBeforeTheFileBeforeDefaults) {
  const std::string file =
      WriteFile("listen: file\nstate-dir: file\ncluster: file\n");
  SetVariable("PT_TEST_LISTEN", "variable");
  SetVariable("PT_TEST_STATE_DIR", "variable");
  ASSERT_TRUE(Run({"--config", file, "--listen", "flag"})) << error_;
  EXPECT_EQ(config_.listen(), "flag");
  EXPECT_EQ(config_.state_dir(), "variable");
  EXPECT_EQ(config_.cluster(), "file");
  EXPECT_EQ(config_.epoch_steps(), 50u);
}

TEST_F(LoadTest, TheCheckLearnsWhereAValueCameFrom) {
  const std::string file = WriteFile("# Ours.\nlisten: file\n");
  ASSERT_TRUE(Run({}));
  EXPECT_EQ(listen_from_, "--listen");
  ASSERT_TRUE(Run({"--config", file}));
  EXPECT_EQ(listen_from_, file + ":2: listen");
  SetVariable("PT_TEST_LISTEN", "variable");
  ASSERT_TRUE(Run({"--config", file}));
  EXPECT_EQ(listen_from_, "PT_TEST_LISTEN");
  ASSERT_TRUE(Run({"--config", file, "--listen=flag"}));
  EXPECT_EQ(listen_from_, "--listen");
}

TEST_F(LoadTest, AVariableMayNameTheFileAndAFlagAnother) {
  SetVariable("PT_TEST_CONFIG", WriteFile("cluster: one\n"));
  ASSERT_TRUE(Run({})) << error_;
  EXPECT_EQ(config_.cluster(), "one");
  SetVariable("PT_TEST_CONFIG", "/nowhere.yaml");
  ASSERT_TRUE(Run({"--config", WriteFile("cluster: two\n")})) << error_;
  EXPECT_EQ(config_.cluster(), "two");
}

TEST_F(LoadTest, VariablesHoldEveryType) {
  SetVariable("PT_TEST_LINKS", "a-b, b-c");
  SetVariable("PT_TEST_EPOCH_STEPS", "9");
  SetVariable("PT_TEST_MIN_EXCHANGE_SHARE", "0.5");
  SetVariable("PT_TEST_INSECURE_NETWORK", "true");
  ASSERT_TRUE(Run({})) << error_;
  EXPECT_THAT(config_.links(), ElementsAre("a-b", "b-c"));
  EXPECT_EQ(config_.epoch_steps(), 9u);
  EXPECT_EQ(config_.min_exchange_share(), 0.5);
  EXPECT_TRUE(config_.insecure_network());
}

TEST_F(LoadTest, AnEmptyVariableIsNotSetAndAStrangerIsIgnored) {
  SetVariable("PT_TEST_LISTEN", "");
  SetVariable("PT_TEST_CONFIG", "");
  SetVariable("PT_TEST_NOTHING", "");
  SetVariable("PT_TEST_PORT", "tcp://10.0.0.1:7070");
  SetVariable("PT_TEST_PAGE_PORT_80_TCP_ADDR", "10.0.0.1");
  SetVariable("PT_TEST_PORT_7070_TCP_PORT", "7070");
  SetVariable("PT_TEST_SERVICE_PORT", "7070");
  SetVariable("PT_TEST_SERVICE_PORT_GRPC", "7070");
  SetVariable("PT_TESTS", "others");
  ASSERT_TRUE(Run({})) << error_;
  EXPECT_EQ(config_.listen(), "127.0.0.1:7070");
}

TEST_F(LoadTest, AVariableThatNamesNoSettingIsAMistake) {
  const std::pair<const char*, const char*> cases[] = {
      {"PT_TEST_LISTN", "did you mean PT_TEST_LISTEN? see --help"},
      {"PT_TEST_TOKEN_FIL", "did you mean PT_TEST_PAGE_TOKEN_FILE? see"},
      {"PT_TEST_PORT", "unknown variable 'PT_TEST_PORT'; unset it, or see"},
      {"PT_TEST_COLOUR", "unknown variable 'PT_TEST_COLOUR'; unset it, or see"},
  };
  for (const auto& [name, message] : cases) {
    SetVariable(name, "7070");
    EXPECT_FALSE(Run({})) << name;
    EXPECT_EQ(exit_code_, 2);
    EXPECT_THAT(error_, HasSubstr(message));
    unsetenv(name);
  }
}

TEST_F(LoadTest, FlagsHoldEveryType) {
  ASSERT_TRUE(Run({"--links", "a-b", "--links", "b-c,c-d", "--epoch-steps=9",
                   "--min-exchange-share", "0.5", "--insecure-network"}))
      << error_;
  EXPECT_THAT(config_.links(), ElementsAre("a-b", "b-c", "c-d"));
  EXPECT_EQ(config_.epoch_steps(), 9u);
  EXPECT_EQ(config_.min_exchange_share(), 0.5);
  EXPECT_TRUE(config_.insecure_network());
}

TEST_F(LoadTest, AnEmptyValueDoesNotTakeTheNextArgument) {
  ASSERT_TRUE(Run({"--cluster=", "--listen=", "--links=", "--codec=fp32"}))
      << error_;
  EXPECT_EQ(config_.cluster(), "");
  EXPECT_EQ(config_.listen(), "");
  EXPECT_THAT(config_.links(), ElementsAre());
  EXPECT_EQ(config_.codec(), "fp32");
}

TEST_F(LoadTest, AFlagTakesBackWhatTheFileSays) {
  const std::string file = WriteFile("insecure-network: true\nlinks: [a-b]\n");
  ASSERT_TRUE(
      Run({"--config", file, "--insecure-network=false", "--links", ""}))
      << error_;
  EXPECT_FALSE(config_.insecure_network());
  EXPECT_THAT(config_.links(), ElementsAre());
}

TEST_F(LoadTest, AMistakeIsOneLineAndExitCodeTwo) {
  const std::string big = ::testing::TempDir() + "/big.yaml";
  std::ofstream(big) << std::string(kMaxFileBytes + 1, '#');
  const std::string fifo = ::testing::TempDir() + "/fifo";
  ASSERT_TRUE(mkfifo(fifo.c_str(), 0600) == 0 || errno == EEXIST);
  const std::string bad = ::testing::TempDir() + "/bad.yaml";
  std::ofstream(bad) << "listen: a\nlissten: b\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--lissten", "a"},
       "unknown flag '--lissten'; did you mean --listen? see --help"},
      {{"--Listen=a"}, "'--Listen'; did you mean --listen? see --help"},
      {{"--state_dir=a"}, "'--state_dir'; did you mean --state-dir? see"},
      {{"--colour"}, "unknown flag '--colour'; see --help"},
      {{"--listen"}, "--listen"},
      {{"--listen=a", "--listen=b"}, "--listen"},
      {{"--epoch-steps", "x"}, "--epoch-steps: 'x' is not a whole number"},
      {{"--insecure-network=perhaps"}, "perhaps"},
      {{"--insecure-network="}, "--insecure-network: '' is not true or false"},
      {{"--epoch-steps=", "--cluster=a"}, "--epoch-steps: '' is not a whole"},
      {{"--epoch-steps", "", "--cluster=a"},
       "--epoch-steps: '' is not a whole"},
      {{"--state-dir", "--cluster", "a"},
       "--state-dir: no value comes before '--cluster'"},
      {{"--config=", "--cluster=a"}, "--config: '' is not a file"},
      {{"--min-exchange-share=2"},
       "--min-exchange-share: '2' is not a number from 0 to 1"},
      {{"--epoch-steps=-1"}, "--epoch-steps: '-1' is not a whole number"},
      {{"--config", "/nowhere.yaml"},
       "--config: '/nowhere.yaml' cannot be read: No such file"},
      {{"--config", "/"},
       "--config: '/' is a directory, pipe or device; give a regular file"},
      {{"--config", "/dev/zero"},
       "--config: '/dev/zero' is a directory, pipe or"},
      {{"--config", fifo}, "--config: '" + fifo + "' is a directory, pipe or"},
      {{"--config", big}, "--config: '" + big + "' is larger than 1048576"},
      {{"--config", bad}, bad + ":2: unknown key 'lissten'; did you mean"},
  };
  for (const auto& [words, message] : cases) {
    EXPECT_FALSE(Run(words)) << message;
    EXPECT_EQ(exit_code_, 2);
    EXPECT_THAT(error_, StartsWith("pactrain-test: "));
    EXPECT_THAT(error_, HasSubstr(message));
    EXPECT_EQ(error_.find('\n'), error_.size() - 1) << error_;
    EXPECT_EQ(out_, "");
  }
}

TEST_F(LoadTest, ABadVariableIsNamed) {
  SetVariable("PT_TEST_EPOCH_STEPS", "many");
  EXPECT_FALSE(Run({}));
  EXPECT_THAT(error_,
              HasSubstr("PT_TEST_EPOCH_STEPS: 'many' is not a whole number"));
  SetVariable("PT_TEST_CONFIG", "/nowhere.yaml");
  EXPECT_FALSE(Run({}));
  EXPECT_THAT(error_, HasSubstr("PT_TEST_CONFIG: '/nowhere.yaml' cannot be"));
}

TEST_F(LoadTest, AFileOfTheLargestSizeIsRead) {
  const std::string line = "cluster: big\n";
  ASSERT_TRUE(
      Run({"--config",
           WriteFile(line + std::string(kMaxFileBytes - line.size(), '#'))}))
      << error_;
  EXPECT_EQ(config_.cluster(), "big");
}

TEST_F(LoadTest, PrintConfigGivesAFileForTheSameSettings) {
  SetVariable("PT_TEST_STATE_DIR", "/var/lib/a b");
  EXPECT_FALSE(Run({"--print-config", "--config", WriteFile("risk: null-ish\n"),
                    "--listen=127.0.0.1:1", "--links=a-b,b-c"}));
  EXPECT_EQ(exit_code_, 0) << error_;
  EXPECT_THAT(out_, HasSubstr("listen: 127.0.0.1:1  # --listen\n"));
  EXPECT_THAT(out_, HasSubstr("  # PT_TEST_STATE_DIR\n"));
  EXPECT_THAT(out_, HasSubstr("epoch-steps: 50  # default\n"));
  EXPECT_THAT(out_, HasSubstr("settings.yaml:1\n"));
  const std::string file = WriteFile(out_);
  const v1::CoordinatorConfig printed = std::exchange(config_, {});
  unsetenv("PT_TEST_STATE_DIR");
  ASSERT_TRUE(Run({"--config", file})) << error_;
  EXPECT_TRUE(MessageDifferencer::Equals(config_, printed));
}

TEST_F(LoadTest, PrintConfigComesAfterTheCheck) {
  EXPECT_FALSE(
      Run({"--print-config"}, absl::InvalidArgumentError("--listen: no")));
  EXPECT_EQ(exit_code_, 2);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(error_, "pactrain-test: --listen: no\n");
}

TEST_F(LoadTest, HelpNamesEverySettingItsDefaultAndTheVariables) {
  EXPECT_FALSE(Run({"--help"}));
  EXPECT_EQ(exit_code_, 0);
  for (const FieldDescriptor* field : FieldsOf(*config_.GetDescriptor())) {
    EXPECT_THAT(out_, HasSubstr(FlagOf(*field)));
  }
  EXPECT_THAT(out_, HasSubstr("Usage: pactrain-test"));
  EXPECT_THAT(out_, HasSubstr("127.0.0.1:7070"));
  EXPECT_THAT(out_, HasSubstr("--config"));
  EXPECT_THAT(out_, HasSubstr("PT_TEST_LISTEN_METRICS"));
}

}  // namespace
}  // namespace pactrain::config
