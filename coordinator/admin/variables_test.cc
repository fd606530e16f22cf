#include "coordinator/admin/variables.h"

#include <fstream>
#include <regex>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// The one finding of a single variable.
Finding Of(const std::string& name, const std::string& value) {
  const Findings findings = CheckVariables({{name, value}});
  EXPECT_EQ(findings.size(), 1);
  return findings.front();
}

TEST(CheckVariables, WhatIsKnownAndWellFormedIsCounted) {
  EXPECT_EQ(CheckVariables({}).front().what, "none is set");
  const Findings findings =
      CheckVariables({{"PACTRAIN_AGENT", "unix:/run/pactrain/agent.sock"},
                      {"PACTRAIN_AGENT_LISTEN", "127.0.0.1:7072-7079"},
                      {"PACTRAIN_ATTACH_TIMEOUT", "30"},
                      {"PACTRAIN_COORDINATOR", "head.example:7070"},
                      {"PACTRAIN_DEVICE_PATH", "device"},
                      {"PACTRAIN_EMBEDDED", "0"},
                      {"PACTRAIN_EPOCH_STEPS", "50"},
                      {"PACTRAIN_JOB_ID", "digits"},
                      {"PACTRAIN_SITE", ""},
                      {"PACTRAIN_SITES", "a:2,b:4"},
                      {"PATH", "/bin"}});
  ASSERT_EQ(findings.size(), 1);
  EXPECT_EQ(findings[0].level, Level::kOk);
  EXPECT_EQ(findings[0].what, "9 set, all known and well-formed");
}

TEST(CheckVariables, ATypoIsNamedWithWhatWasMeant) {
  const std::pair<const char*, const char*> typos[] = {
      {"PACTRAIN_SITS", "PACTRAIN_SITES"},
      {"PACTRAIN_JOBID", "PACTRAIN_JOB_ID"},
      {"PACTRAIN_AGENT_LISTN", "PACTRAIN_AGENT_LISTEN"}};
  for (const auto& [typo, meant] : typos) {
    const Finding finding = Of(typo, "a:2");
    EXPECT_EQ(finding.level, Level::kProblem);
    EXPECT_THAT(finding.what,
                HasSubstr(std::string(typo) + " is no variable of PacTrain"));
    EXPECT_EQ(finding.to_do, std::string("did you mean ") + meant + "?");
  }
  EXPECT_THAT(Of("PACTRAIN_XYZ", "1").to_do, HasSubstr("has a table of all"));
}

TEST(CheckVariables, WhatKubernetesMakesIsLeftAlone) {
  EXPECT_EQ(CheckVariables({{"PACTRAIN_AGENT_PORT", "tcp://10.0.0.1:7072"},
                            {"PACTRAIN_AGENT_PORT_7072_TCP_ADDR", "10.0.0.1"},
                            {"PACTRAIN_AGENT_SERVICE_PORT", "7072"},
                            {"PACTRAIN_SERVICE_PORT", "7070"},
                            {"PACTRAIN_COORDINATOR_SERVICE_HOST", "10.0.0.2"}})
                .front()
                .what,
            "none is set");
}

TEST(CheckVariables, AMalformedValueIsSaidWithWhatIsAllowed) {
  struct Case {
    const char *name, *value, *words;
  };
  for (const Case& c :
       {Case{"PACTRAIN_AGENT", "/run/agent.sock",
             "PACTRAIN_AGENT is '/run/agent.sock'; allowed is unix: and"},
        Case{"PACTRAIN_ATTACH_TIMEOUT", "0.5", "allowed are 1 to 86400"},
        Case{"PACTRAIN_ATTACH_TIMEOUT", "soon", "allowed are 1 to 86400"},
        Case{"PACTRAIN_COORDINATOR", "head", "allowed is host:port"},
        Case{"PACTRAIN_EMBEDDED", "no", "allowed are 0 and 1"},
        Case{"PACTRAIN_DEVICE_PATH", "cuda",
             "allowed are auto, torch, device and nccl"},
        Case{"PACTRAIN_JOB_ID", "My Job", "PACTRAIN_JOB_ID"},
        Case{"PACTRAIN_SITES", "a,b", "allowed is name:trainers"},
        Case{"PACTRAIN_SITES", "a:0", "allowed is name:trainers"},
        Case{"PACTRAIN_CODEC", "fp8", "PACTRAIN_CODEC: 'fp8' is not fp32 or"},
        Case{"PACTRAIN_AGENT_LOG_LEVEL", "loud",
             "PACTRAIN_AGENT_LOG_LEVEL: 'loud' is not debug,"},
        Case{"PACTRAIN_COORDINATOR_EPOCH_STEPS", "0",
             "'0' is not a whole number from 1 to"}}) {
    const Finding finding = Of(c.name, c.value);
    EXPECT_EQ(finding.level, Level::kProblem) << c.value;
    EXPECT_THAT(finding.what, HasSubstr(c.words));
    EXPECT_THAT(finding.to_do, HasSubstr("correct it, or unset it"));
  }
}

TEST(KnownVariables, AreThoseOfTheUsersTable) {
  std::ifstream page("docs/environment.md");
  ASSERT_TRUE(page);
  std::set<std::string> table;
  const std::regex name("`(PACTRAIN_[A-Z_]+)`");
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("| `PACTRAIN_", 0) != 0) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    for (auto it = std::sregex_iterator(cell.begin(), cell.end(), name);
         it != std::sregex_iterator(); ++it) {
      EXPECT_TRUE(table.insert((*it)[1]).second) << (*it)[1] << " twice";
    }
  }
  EXPECT_THAT(KnownVariables(), ElementsAreArray(table));
}

}  // namespace
}  // namespace pactrain::coordinator
