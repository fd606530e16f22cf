// The sample files and the user's tables name every setting, and no other.
#include <fstream>
#include <iterator>
#include <regex>

#include "base/status_matchers.h"
#include "config/yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::config {
namespace {

using ::testing::HasSubstr;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void CheckSample(const std::string& path, Message& config) {
  // "#key: value" is a setting that is commented out, "# ..." a comment.
  const std::string all =
      std::regex_replace(Read(path), std::regex("\n#([a-z])"), "\n$1");
  Settings settings(config);
  ASSERT_OK(ReadYaml(all, path, settings));
  for (const FieldDescriptor* field : FieldsOf(*config.GetDescriptor())) {
    EXPECT_THAT(settings.Where(KeyOf(*field)), HasSubstr(path));
  }
}

TEST(Samples, NameEverySetting) {
  v1::CoordinatorConfig coordinator;
  CheckSample("deploy/pactrain-coordinator.yaml", coordinator);
  v1::AgentConfig agent;
  CheckSample("deploy/pactrain-agent.yaml", agent);
}

TEST(SettingsPage, NamesEverySetting) {
  const std::string page = Read("docs/settings.md");
  for (const Descriptor* settings :
       {v1::CoordinatorConfig::descriptor(), v1::AgentConfig::descriptor()}) {
    for (const FieldDescriptor* field : FieldsOf(*settings)) {
      EXPECT_THAT(page, HasSubstr("| `" + KeyOf(*field) + "` |"));
    }
  }
}

}  // namespace
}  // namespace pactrain::config
