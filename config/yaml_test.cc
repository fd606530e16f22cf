#include "config/yaml.h"

#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ReadYaml, TakesEveryType) {
  v1::CoordinatorConfig config;
  Settings settings(config);
  ASSERT_OK(
      ReadYaml("# A comment.\n"
               "listen: '127.0.0.1:1'\n"
               "risk: 0.2\n"
               "epoch-steps: 7\n"
               "min-exchange-share: .5\n"
               "insecure-network: true\n"
               "links: [a-b, 'b-c,c-d']\n",
               "f.yaml", settings));
  EXPECT_EQ(config.listen(), "127.0.0.1:1");
  EXPECT_EQ(config.risk(), "0.2");
  EXPECT_EQ(config.epoch_steps(), 7u);
  EXPECT_EQ(config.min_exchange_share(), 0.5);
  EXPECT_TRUE(config.insecure_network());
  EXPECT_THAT(config.links(), ElementsAre("a-b", "b-c", "c-d"));
  EXPECT_EQ(settings.Where("epoch-steps"), "f.yaml:4: epoch-steps");
}

TEST(ReadYaml, AListMayBeWordsWithCommasOrLinesWithDashes) {
  for (const char* text : {"links: a-b, b-c", "links:\n- a-b\n- b-c\n",
                           "links:\n  - a-b\n  - b-c"}) {
    v1::CoordinatorConfig config;
    Settings settings(config);
    ASSERT_OK(ReadYaml(text, "f.yaml", settings));
    EXPECT_THAT(config.links(), ElementsAre("a-b", "b-c")) << text;
  }
}

TEST(ReadYaml, AnEmptyListReplacesTheDefault) {
  v1::CoordinatorConfig config;
  config.add_links("a-b");
  Settings settings(config);
  ASSERT_OK(ReadYaml("links: []", "f.yaml", settings));
  EXPECT_THAT(config.links(), ElementsAre());
}

TEST(ReadYaml, NothingButCommentsSetsNothing) {
  for (const char* text : {"", "\n", "# listen: x\n", "---\n", "{}"}) {
    v1::CoordinatorConfig config;
    Settings settings(config);
    EXPECT_OK(ReadYaml(text, "f.yaml", settings)) << text;
    EXPECT_EQ(config.ByteSizeLong(), 0u);
  }
}

TEST(ReadYaml, AnUnknownKeyIsRefusedWithWhatWasMeant) {
  v1::AgentConfig config;
  Settings settings(config);
  EXPECT_THAT(
      ReadYaml("name: a\n\nlisten-metrcs: x\n", "/etc/a.yaml", settings)
          .ToString(),
      AllOf(
          HasSubstr("/etc/a.yaml:3: unknown key 'listen-metrcs'; did you mean "
                    "listen-metrics? allowed are name, site, "),
          HasSubstr(", log-level")));
  EXPECT_THAT(ReadYaml("colour: x", "/etc/a.yaml", settings).ToString(),
              HasSubstr("/etc/a.yaml:1: unknown key 'colour'; allowed are "));
  EXPECT_THAT(ReadYaml("LISTEN-METRICS: x", "a", settings).ToString(),
              HasSubstr("did you mean listen-metrics?"));
  // The name of the field is not a second name of the setting.
  EXPECT_THAT(ReadYaml("listen_metrics: x", "a", settings).ToString(),
              HasSubstr("did you mean listen-metrics?"));
}

TEST(ReadYaml, EveryMistakeNamesFileLineAndWhatIsAllowed) {
  struct Case {
    std::string text, message;
  };
  const std::vector<Case> cases = {
      {"\nepoch-steps: many",
       "f:2: epoch-steps: 'many' is not a whole number from 1 to 1000000"},
      {"epoch-steps: -1", "f:1: epoch-steps: '-1' is not a whole number"},
      {"epoch-steps: 1.5", "f:1: epoch-steps: '1.5' is not a whole number"},
      {"epoch-steps: 4294967296", "'4294967296' is not a whole number"},
      {"epoch-steps: 0", "'0' is not a whole number from 1 to 1000000"},
      {"epoch-steps: 1000001", "'1000001' is not a whole number from 1 to"},
      {"min-exchange-share: 1.01", "'1.01' is not a number from 0 to 1"},
      {"min-exchange-share: -0.1", "'-0.1' is not a number from 0 to 1"},
      {"min-exchange-share: much",
       "f:1: min-exchange-share: 'much' is not a number"},
      {"min-exchange-share: nan", "'nan' is not a number"},
      {"insecure-network: yes",
       "f:1: insecure-network: 'yes' is not true or false"},
      {"codec: int8", "f:1: codec: 'int8' is not fp32 or bf16"},
      {"log-level: loud",
       "f:1: log-level: 'loud' is not debug, info, warn or error"},
      {"state-dir: \"a\\nb\"",
       "f:1: state-dir: 'a\\nb' is not free of control characters"},
      {"listen:", "f:1: listen: has no value; a single value is needed"},
      {"listen: ~", "f:1: listen: has no value"},
      {"listen: [a]", "f:1: listen: is a list; a single value is needed"},
      {"listen:\n  host: a", "f:1: listen: is a map; a single value is needed"},
      {"links:", "f:1: links: has no value; a list of words is needed"},
      {"links: {a: b}", "f:1: links: is a map; a list of words is needed"},
      {"links:\n- a-b\n- [b-c]", "f:3: links: an element is not a word"},
      {"links: [a-b, ~]", "f:1: links: an element is not a word"},
      {"risk: 1\nlisten: a\nrisk: 2",
       "f:3: key 'risk' is there twice, first in line 1"},
      {"[a]: b", "f:1: a key is a word"},
      {"- a", "f:1: lines 'key: value' are needed"},
      {"just words", "f:1: lines 'key: value' are needed"},
      {"risk: 1\n---\nrisk: 2", "a second YAML document begins"},
      {"risk: 1\nlisten: [a", "f:2: not YAML: "},
      {"risk: 1\n\tlisten: a", "f:2: not YAML: "},
      {"links: " + std::string(100000, '['), "f:1: not YAML: "},
      {std::string(1000, 'k') + ": 1", "f:1: unknown key 'kkk"},
  };
  for (const Case& c : cases) {
    v1::CoordinatorConfig config;
    Settings settings(config);
    const absl::Status status = ReadYaml(c.text, "f", settings);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << c.text.substr(0, 50);
    const std::string message(status.message());
    EXPECT_THAT(message, StartsWith("f:"));
    EXPECT_THAT(message, HasSubstr(c.message));
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    // It lists all keys, but not this one whole.
    EXPECT_LT(message.size(), 500u);
  }
}

}  // namespace
}  // namespace pactrain::config
