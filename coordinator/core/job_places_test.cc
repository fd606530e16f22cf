// Whose ended jobs give way to others'.
#include <cstddef>
#include <string>

#include "base/status_matchers.h"
#include "coordinator/core/test_cluster.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using protocol::JoinRefused;
using ::testing::HasSubstr;

constexpr size_t kMost = CoordinatorState::kMaxRemembered;

class JobPlacesTest : public ::testing::Test {
 protected:
  // Its ranks run at once, and at once are over.
  void RunAndEnd(const std::string& agent, const std::string& job,
                 uint16_t model = 0) {
    cluster_.Clear();
    cluster_.group = {job, model};
    cluster_.Join(agent, 0, 1);
    cluster_.Leave(agent, 0, "detached");
  }
  void Flood(const std::string& agent, const std::string& job, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      RunAndEnd(agent, job + "-" + std::to_string(i));
    }
  }
  void Pin(const std::string& job) {
    cluster_.group = {job, 0};
    cluster_.Pin(
        coordinator::Pin{protocol::Mode::kFull, protocol::Codec::kFp32});
  }
  bool IsKnown(const std::string& job) const {
    return cluster_.journal().groups.contains({job, 0});
  }
  size_t Known() const { return cluster_.journal().groups.size(); }
  // Of the newest step, who was forgotten and for whom.
  std::string WhyForgotten() const {
    for (const JournalRecord& record : cluster_.records()) {
      if (const auto* forgotten = std::get_if<GroupForgotten>(&record)) {
        return forgotten->why;
      }
    }
    return "";
  }

  TestCluster cluster_;
};

TEST_F(JobPlacesTest, sec_AnotherTeamsFloodForgetsNobodysJob) {
  cluster_.Connect("vision", "x");
  cluster_.Connect("text", "x");
  RunAndEnd("vision", "a-pinned");
  Pin("a-pinned");
  RunAndEnd("vision", "a-plain");
  cluster_.Advance(absl::Seconds(1));
  Flood("text", "text", kMost + 16);
  EXPECT_TRUE(IsKnown("a-pinned"));
  EXPECT_TRUE(cluster_.journal().groups.at({"a-pinned", 0}).pin.has_value());
  EXPECT_TRUE(IsKnown("a-plain"));
  EXPECT_FALSE(IsKnown("text-0"));
  EXPECT_TRUE(IsKnown("text-" + std::to_string(kMost + 15)));
  EXPECT_EQ(Known(), kMost);
  EXPECT_EQ(WhyForgotten(),
            "for job 'text-1615' of agent 'text': agent 'text' held 1598 of "
            "the 1600 that are remembered");
}

TEST_F(JobPlacesTest, sec_AnotherTeamsFloodForgetsNobodysJobAfterARestart) {
  cluster_.Connect("vision", "x");
  cluster_.Connect("text", "x");
  RunAndEnd("vision", "a-plain");
  Flood("text", "text", kMost - 1);
  cluster_.RestartCoordinator();
  cluster_.Pass(60, {});  // Nobody is still there.
  cluster_.Connect("text", "x");
  Flood("text", "later", 16);
  EXPECT_TRUE(IsKnown("a-plain"));
  EXPECT_EQ(Known(), kMost);
}

// What is live takes no place from what is remembered.
TEST_F(JobPlacesTest, sec_AFloodOfLiveModelsForgetsNobodysJob) {
  cluster_.Connect("vision", "x");
  RunAndEnd("vision", "a-plain");
  for (const std::string evil : {"evil-1", "evil-2"}) {
    cluster_.Connect(evil, "x");
    for (int i = 0; i < CoordinatorState::kMaxJobsOfAgent; ++i) {
      for (uint16_t model = 0; model < protocol::kMaxModels; ++model) {
        cluster_.group = {evil + "-" + std::to_string(i), model};
        cluster_.Join(evil, 0, 1);
      }
    }
  }
  EXPECT_EQ(Known(), kMost + 1);
  EXPECT_TRUE(IsKnown("a-plain"));
  // Nor when they end.
  for (const std::string evil : {"evil-1", "evil-2"}) {
    for (int i = 0; i < CoordinatorState::kMaxJobsOfAgent; ++i) {
      for (uint16_t model = 0; model < protocol::kMaxModels; ++model) {
        cluster_.group = {evil + "-" + std::to_string(i), model};
        cluster_.Leave(evil, 0, "detached");
      }
    }
    Flood(evil, evil + "-later", 16);
  }
  EXPECT_TRUE(IsKnown("a-plain"));
}

// Each with a part of all places, a newcomer takes none of another's.
TEST_F(JobPlacesTest, sec_OfAsManyTheNewcomersOwnGoFirst) {
  cluster_.Connect("vision", "x");
  cluster_.Connect("text", "x");
  Flood("vision", "vision", kMost / 2);
  cluster_.Advance(absl::Seconds(1));
  Flood("text", "text", kMost / 2);
  RunAndEnd("text", "one-more");
  EXPECT_TRUE(IsKnown("vision-0"));
  EXPECT_FALSE(IsKnown("text-0"));
  RunAndEnd("vision", "another");
  EXPECT_FALSE(IsKnown("vision-0"));
  EXPECT_TRUE(IsKnown("text-1"));
}

TEST_F(JobPlacesTest, sec_WhoHoldsMostGivesWay) {
  cluster_.Connect("vision", "x");
  cluster_.Connect("text", "x");
  RunAndEnd("vision", "vision-first");
  cluster_.Advance(absl::Seconds(1));
  Flood("text", "text", kMost - 1);
  RunAndEnd("vision", "vision-second");
  EXPECT_TRUE(IsKnown("vision-first"));
  EXPECT_FALSE(IsKnown("text-0"));
  EXPECT_EQ(WhyForgotten(),
            "for job 'vision-second' of agent 'vision': agent 'text' held "
            "1599 of the 1600 that are remembered");
}

// The key of one job makes any number of names.
TEST_F(JobPlacesTest, sec_NamesThatOneJobKeyMakesHoldTogether) {
  constexpr size_t kNames = 50;
  constexpr size_t kVictims = 300;
  cluster_.Connect("vision", "x");
  Flood("vision", "vision", kVictims);
  cluster_.Advance(absl::Seconds(1));
  for (size_t i = 0; i < kNames; ++i) {
    const std::string name = "n" + std::to_string(i) + "..text";
    cluster_.Connect(name, "x");
    Flood(name, name, (kMost - kVictims) / kNames);
  }
  RunAndEnd("n0..text", "one-more");
  EXPECT_TRUE(IsKnown("vision-0"));
  EXPECT_THAT(WhyForgotten(), HasSubstr("agent '*..text' held 1300 of"));
}

// A job of two teams is each one's, and as safe as the safer one's.
TEST_F(JobPlacesTest, sec_AFloodOfOneOfItsAgentsForgetsNoSharedJob) {
  cluster_.Connect("vision", "x");
  cluster_.Connect("text", "x");
  cluster_.group = {"shared", 0};
  cluster_.Join("vision", 0, 2);
  cluster_.Join("text", 1, 2);
  cluster_.Leave("vision", 0, "detached");
  cluster_.Leave("text", 1, "detached");
  cluster_.Advance(absl::Seconds(1));
  Flood("text", "text", kMost + 1);
  EXPECT_TRUE(IsKnown("shared"));
}

TEST_F(JobPlacesTest, WhatWasNeverFormedGivesWayFirst) {
  cluster_.Connect("vision", "x");
  Flood("vision", "vision", kMost - 1);
  cluster_.group = {"never", 0};
  cluster_.Join("vision", 0, 2);
  cluster_.Leave("vision", 0, "detached");
  RunAndEnd("vision", "one-more");
  EXPECT_TRUE(IsKnown("vision-0"));
  EXPECT_EQ(Known(), kMost);
}

TEST_F(JobPlacesTest, sec_APinnedJobNeverGivesWay) {
  cluster_.Connect("vision", "x");
  RunAndEnd("vision", "pinned");
  Pin("pinned");
  cluster_.Advance(absl::Seconds(1));
  Flood("vision", "vision", kMost + 1);
  ASSERT_TRUE(IsKnown("pinned"));
  // It does again once it is not.
  cluster_.group = {"pinned", 0};
  cluster_.Pin(std::nullopt);
  RunAndEnd("vision", "one-more");
  EXPECT_FALSE(IsKnown("pinned"));
}

// So many pins can be of an older release only.
TEST_F(JobPlacesTest, sec_WhereAllArePinnedTheNewcomerIsTold) {
  cluster_.Connect("vision", "x");
  Flood("vision", "vision", kMost);
  TestCluster::Copy copy = cluster_.Restore();
  for (auto& [id, group] : copy.journal.groups) {
    group.pin = coordinator::Pin{protocol::Mode::kFull, protocol::Codec::kFp32};
  }
  cluster_.Restore(copy);
  cluster_.Pass(60, {});
  cluster_.Connect("text", "x");
  cluster_.group = {"text", 0};
  cluster_.Join("text", 0, 1);
  ASSERT_TRUE(cluster_.Got<JoinRefused>("text").has_value());
  EXPECT_THAT(cluster_.Got<JoinRefused>("text")->reason,
              HasSubstr("`pactrain-admin unpin JOB`"));
  EXPECT_EQ(Known(), kMost);
}

// Else an operator of one team could keep all others' jobs out by pins.
TEST_F(JobPlacesTest, sec_limits_Pins) {
  cluster_.Connect("vision", "x");
  Flood("vision", "vision", CoordinatorState::kMaxPinned + 1);
  for (size_t i = 0; i < CoordinatorState::kMaxPinned; ++i) {
    Pin("vision-" + std::to_string(i));
  }
  const auto pin = [&](const std::string& job) {
    return cluster_.state()
        .SetPin({job, 0},
                coordinator::Pin{protocol::Mode::kTernary,
                                 protocol::Codec::kLevels7},
                cluster_.now())
        .status();
  };
  const std::string last =
      "vision-" + std::to_string(CoordinatorState::kMaxPinned);
  EXPECT_THAT(pin(last), StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("`pactrain-admin unpin JOB`")));
  EXPECT_OK(pin("vision-0"));  // Has one.
  cluster_.group = {"vision-1", 0};
  cluster_.Pin(std::nullopt);
  EXPECT_OK(pin(last));
}

}  // namespace
}  // namespace pactrain::coordinator
