#include "config/reload.h"

#include <fstream>
#include <optional>
#include <string>

#include "base/log_capture.h"
#include "gtest/gtest.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::config {
namespace {

class ReloadTest : public ::testing::Test {
 protected:
  ReloadTest() {
    defaults_.set_log_level("info");
    defaults_.set_risk("balanced");
    v1::CoordinatorConfig running = defaults_;
    running.add_links("a-b");
    const char* argv[] = {"pactrain-test", "--config", path_.c_str()};
    reload_.emplace(Program{"pactrain-test", "tests.", "PT_TEST"}, 3, argv,
                    defaults_, running);
  }
  // What is logged when the file holds `text`.
  std::string Said(const std::string& text) {
    std::ofstream(path_, std::ios::trunc) << text;
    base::LogCapture log;
    (*reload_)();
    level_ = spdlog::get_level();
    return log.text();
  }

  const std::string path_ = ::testing::TempDir() + "/reloaded.yaml";
  v1::CoordinatorConfig defaults_;
  std::optional<Reload> reload_;
  spdlog::level::level_enum level_ = spdlog::level::off;
};

TEST_F(ReloadTest, TheLogsLevelIsInForceAtOnce) {
  EXPECT_EQ(Said("links: a-b\nlog-level: debug\n"),
            "the settings were read again, and are in force\n");
  EXPECT_EQ(level_, spdlog::level::debug);
}

TEST_F(ReloadTest, WhatNeedsARestartIsNamed) {
  const std::string said =
      "the settings were read again; a restart is needed for links, risk\n";
  EXPECT_EQ(Said("links: a-b,b-c\nrisk: safe\n"), said);
  EXPECT_EQ(Said("risk: safe\n"), said);
  EXPECT_EQ(Said("links: a-b\n"),
            "the settings were read again, and are in force\n");
}

TEST_F(ReloadTest, AMistakeChangesNothing) {
  const std::string said = Said("log-level: loud\n");
  EXPECT_NE(said.find("those before stay: " + path_ + ":1: log-level: 'loud'"),
            std::string::npos)
      << said;
  EXPECT_EQ(level_, spdlog::level::info);
}

}  // namespace
}  // namespace pactrain::config
