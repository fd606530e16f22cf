// Agents of other releases than the coordinator's.
#include <optional>
#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "coordinator/core/test_cluster.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

// A coordinator of release 0.5.0.
class ReleasesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CoordinatorState::Identity identity{"c", 1};
    identity.version = "0.5.0";
    auto state = CoordinatorState::Create({}, identity, {}, {});
    ASSERT_OK(state);
    state_ = *std::move(state);
  }
  // Of agent "a", the process `process`.
  Effects Hello(const std::string& version, uint64_t process = 1) {
    return state_->OnMessage(
        ++stream_,
        protocol::AgentHello{
            "a", {1, process}, "x", "127.0.0.1:9", version, ""},
        {});
  }
  static auto Warns(const std::string& text) {
    return Field(
        &Effects::events,
        Contains(AllOf(Field(&Effects::Event::warning, true),
                       Field(&Effects::Event::text, HasSubstr(text)))));
  }

  std::optional<CoordinatorState> state_;
  StreamId stream_ = 0;
};

TEST_F(ReleasesTest, OneThatIsNoNeighbourIsRefusedWithBothVersions) {
  for (const auto& [version, newer] :
       {std::pair("0.3.9", "0.5.0"), std::pair("0.7.0", "0.7.0"),
        std::pair("1.5.0", "1.5.0")}) {
    const Effects effects = Hello(version);
    ASSERT_EQ(effects.closes.size(), 1u);
    EXPECT_THAT(
        effects.closes[0].status,
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr(std::string("'a' is of release ") + version),
                       HasSubstr("this coordinator of release 0.5.0"),
                       HasSubstr(std::string("bring both to ") + newer))));
    EXPECT_TRUE(effects.sends.empty());
  }
}

TEST_F(ReleasesTest, ANeighbourIsToldOfOnceForEachProcess) {
  Effects effects = Hello("0.4.2");
  EXPECT_TRUE(effects.closes.empty());
  EXPECT_THAT(effects, Warns("'a' is of release 0.4.2, this coordinator of "
                             "release 0.5.0: neighbours work together"));
  effects = Hello("0.4.2");
  EXPECT_EQ(effects.closes.size(), 1u);  // Of its stream before.
  EXPECT_THAT(effects, Not(Warns("release")));
  state_->OnStreamClosed(stream_, "cut", {});
  EXPECT_THAT(Hello("0.6.0", 2), Warns("'a' is of release 0.6.0"));
}

TEST_F(ReleasesTest, TheSameOneIsNotTold) {
  EXPECT_THAT(Hello("0.5.0"), Not(Warns("release")));
}

TEST_F(ReleasesTest, TheAnswerToAHelloNamesItsOwn) {
  const Effects effects = Hello("0.4.2");
  ASSERT_FALSE(effects.sends.empty());
  EXPECT_EQ(std::get<protocol::Welcome>(effects.sends.front().message).version,
            "0.5.0");
}

TEST_F(ReleasesTest, WhatIsNoReleaseIsLetInAndTold) {
  const Effects effects = Hello("my build");
  EXPECT_TRUE(effects.closes.empty());
  EXPECT_THAT(effects, Warns("'a' is of release my build, this coordinator of "
                             "release 0.5.0: they cannot be compared"));
}

}  // namespace
}  // namespace pactrain::coordinator
