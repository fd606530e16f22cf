#include "config/settings.h"

#include "base/status_matchers.h"
#include "config/yaml.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::config {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const FieldDescriptor& Field(const Message& message, const char* key) {
  return *FindKey(*message.GetDescriptor(), key);
}

TEST(Field, HasOneNameEverywhere) {
  const v1::AgentConfig config;
  const FieldDescriptor& field = Field(config, "listen-metrics");
  EXPECT_EQ(KeyOf(field), "listen-metrics");
  EXPECT_EQ(FlagOf(field), "--listen-metrics");
  EXPECT_EQ(VariableOf("PACTRAIN_AGENT", field),
            "PACTRAIN_AGENT_LISTEN_METRICS");
  EXPECT_EQ(FindKey(*config.GetDescriptor(), "listen_metrics"), nullptr);
}

TEST(Field, EverySettingHasAHelpTextAKnownTypeAndARangeIfANumber) {
  for (const Descriptor* settings :
       {v1::CoordinatorConfig::descriptor(), v1::AgentConfig::descriptor()}) {
    for (const FieldDescriptor* field : FieldsOf(*settings)) {
      EXPECT_FALSE(field->options().GetExtension(v1::help).empty())
          << field->full_name();
      const bool number =
          field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32 ||
          field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
      EXPECT_EQ(field->options().HasExtension(v1::range), number)
          << field->full_name();
      EXPECT_TRUE(field->cpp_type() == FieldDescriptor::CPPTYPE_STRING ||
                  (!field->is_repeated() &&
                   field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE))
          << field->full_name();
    }
  }
}

TEST(Settings, ALaterValueReplacesAnEarlierListToo) {
  v1::CoordinatorConfig config;
  Settings settings(config);
  const FieldDescriptor& links = Field(config, "links");
  ASSERT_OK(settings.Assign(links, {"a-b", "b-c"}, {"f:1", "f:1: links"}));
  ASSERT_OK(settings.Assign(links, {"x-y,y-z"}, {"--links", "--links"}));
  EXPECT_THAT(config.links(), ElementsAre("x-y", "y-z"));
  EXPECT_EQ(settings.Where("links"), "--links");
}

TEST(Settings, AMistakeNamesItsSourceAndLeavesTheValue) {
  v1::CoordinatorConfig config;
  config.set_epoch_steps(5);
  Settings settings(config);
  const absl::Status status =
      settings.Assign(Field(config, "epoch-steps"), {"x"}, {"VAR", "VAR"});
  EXPECT_THAT(status.ToString(), HasSubstr("VAR: 'x' is not a whole number"));
  EXPECT_EQ(config.epoch_steps(), 5u);
  EXPECT_EQ(settings.Where("epoch-steps"), "--epoch-steps");
}

TEST(Settings, AtPutsTheSourceBeforeAnError) {
  v1::CoordinatorConfig config;
  Settings settings(config);
  ASSERT_OK(
      settings.Assign(Field(config, "risk"), {"2"}, {"f:1", "f:1: risk"}));
  EXPECT_OK(settings.At("risk", absl::OkStatus()));
  EXPECT_EQ(settings.At("risk", absl::OutOfRangeError("it is 2")),
            absl::OutOfRangeError("f:1: risk: it is 2"));
}

TEST(Settings, ToYamlSaysWhereEachValueCameFrom) {
  v1::AgentConfig config;
  config.set_name("node-1");
  Settings settings(config);
  ASSERT_OK(settings.Assign(Field(config, "egress-limit"), {"*=1gbit"},
                            {"/etc/a.yaml:4", "/etc/a.yaml:4: egress-limit"}));
  const std::string yaml = settings.ToYaml();
  EXPECT_THAT(yaml, HasSubstr("name: node-1  # default\n"));
  EXPECT_THAT(yaml,
              HasSubstr("egress-limit: [\"*=1gbit\"]  # /etc/a.yaml:4\n"));
  EXPECT_THAT(yaml, HasSubstr("# site:  # not set; "));
}

TEST(Settings, ASourceCannotLeaveItsComment) {
  v1::AgentConfig config;
  Settings settings(config);
  ASSERT_OK(settings.Assign(Field(config, "name"), {"a"},
                            {"x\nlisten-metrics: 1:1", "x"}));
  EXPECT_THAT(settings.ToYaml(), HasSubstr("  # x\\nlisten-metrics: 1:1\n"));
}

TEST(Settings, ToYamlReadsBackAsTheSame) {
  for (const char* text : {"",
                           " ",
                           "plain",
                           "null",
                           "Null",
                           "~",
                           "true",
                           "a: b",
                           "a #b",
                           "#",
                           "'",
                           "\"quoted\\\"",
                           "*=1gbit",
                           "[::1]:80",
                           "x:",
                           "-1",
                           "- a",
                           "\xC3\xA9t\xC3\xA9",
                           "&a",
                           "!b",
                           "%c",
                           "0x10",
                           "1e3",
                           "{",
                           "unix:/run/a b"}) {
    v1::CoordinatorConfig config;
    config.set_state_dir(text);
    config.set_listen("127.0.0.1:0");
    config.add_links("a-b");
    config.add_links("c:d e");
    config.set_min_exchange_share(0.1);
    config.set_epoch_steps(1000000);
    config.set_connections_per_source(1280);
    config.set_insecure_network(true);
    config.set_codec("bf16");
    config.set_log_level("warn");
    v1::CoordinatorConfig again;
    Settings settings(again);
    ASSERT_OK(ReadYaml(Settings(config).ToYaml(), "f", settings)) << text;
    EXPECT_TRUE(MessageDifferencer::Equals(again, config))
        << again.DebugString();
  }
}

}  // namespace
}  // namespace pactrain::config
