#include "agent/flags.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  std::optional<Flags> flags;
  int exit_code = 0;
  std::string message;
};

Outcome Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "pactrain-agent");
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
  EXPECT_EQ(driver.listen_data, "127.0.0.1:0");
  EXPECT_EQ(driver.core.step_deadline, absl::Seconds(60));
  EXPECT_FALSE(driver.core.incarnation.empty());
}

TEST(ParseFlags, ReadsEveryFlag) {
  const Outcome outcome =
      Parse({"--name=a", "--site=eu", "--coordinator=127.0.0.1:7070",
             "--socket=unix:/run/x.sock", "--listen-data=127.0.0.1:5",
             "--advertise-data=127.0.0.1:6", "--listen-metrics=127.0.0.1:7",
             "--step-deadline=2m", "--connect-timeout=inf",
             "--egress-limit=us=100mbit", "--egress-limit=*=1gbit",
             "--log-level=debug"});
  ASSERT_TRUE(outcome.flags.has_value()) << outcome.message;
  Driver::Options driver = outcome.flags->driver;
  EXPECT_EQ(driver.core.site, "eu");
  EXPECT_TRUE(outcome.flags->site_given);
  EXPECT_EQ(driver.coordinator, "127.0.0.1:7070");
  EXPECT_EQ(driver.socket_path, "/run/x.sock");
  EXPECT_EQ(driver.listen_data, "127.0.0.1:5");
  EXPECT_EQ(driver.advertise_data, "127.0.0.1:6");
  EXPECT_EQ(outcome.flags->listen_metrics.ToString(), "127.0.0.1:7");
  EXPECT_EQ(driver.core.step_deadline, absl::Minutes(2));
  EXPECT_EQ(driver.connect_timeout, absl::InfiniteDuration());
  EXPECT_EQ(driver.egress.ForSite("us")->bytes_per_second(), 12.5e6);
  EXPECT_EQ(driver.egress.ForSite("asia")->bytes_per_second(), 125e6);
  EXPECT_EQ(outcome.flags->log_level, "debug");
}

TEST(ParseFlags, AMistakeIsOneLineThatNamesIt) {
  const std::vector<std::vector<const char*>> mistakes = {
      {"--bogus"},
      {"--name=Not A Name"},
      {"--site=no/site"},
      {"--coordinator=nowhere"},
      {"--coordinator=10.0.0.1:7070"},
      {"--coordinator=127.0.0.1:0"},
      {"--advertise-data=10.0.0.1:7070"},
      {"--connect-timeout=0"},
      {"--socket=relative.sock"},
      {"--listen-data=0.0.0.0:1"},
      {"--listen-metrics=10.0.0.1:1"},
      {"--step-deadline=soon"},
      {"--step-deadline=1ms"},
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
    const std::string value(mistake[0]);
    EXPECT_THAT(outcome.message, HasSubstr(value.substr(value.find('=') + 1)));
  }
}

}  // namespace
}  // namespace pactrain::agent
