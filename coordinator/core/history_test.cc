#include "coordinator/core/history.h"

#include "coordinator/core/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::Digest;
using protocol::HistoryMark;
using Place = History::Place;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Digest kA{1, 1}, kB{2, 2}, kC{3, 3}, kD{4, 4};

History After(std::vector<Writer> writers, const Digest& self, int batches) {
  History history(std::move(writers), self);
  for (int i = 0; i < batches; ++i) history.Wrote();
  return history;
}

TEST(HistoryTest, AnOpeningThatWroteNothingLeavesNoTrace) {
  EXPECT_TRUE(History({}, kA).mark().empty());
  EXPECT_EQ(After({{kA, 3}}, kB, 0).mark(), After({}, kA, 3).mark());
}

TEST(HistoryTest, WhatAJournalOrOneBeforeItHasSaidIsHeld) {
  const History history = After({{kA, 3}, {kB, 2}}, kC, 4);
  EXPECT_EQ(history.Find({}), Place::kHeld);
  EXPECT_EQ(history.Find(history.mark()), Place::kHeld);
  EXPECT_EQ(history.Find(After({{kA, 3}}, kB, 1).mark()), Place::kHeld);
  EXPECT_EQ(history.Find(After({}, kA, 3).mark()), Place::kHeld);
}

TEST(HistoryTest, AnOlderCopyLacksWhatWasWrittenAfterIt) {
  // By the same opening, the next one, and one after a longer part of ours.
  EXPECT_EQ(After({{kA, 2}}, kC, 9).Find(After({}, kA, 3).mark()),
            Place::kLost);
  EXPECT_EQ(After({{kA, 3}}, kC, 0).Find(After({{kA, 3}}, kB, 1).mark()),
            Place::kLost);
  EXPECT_EQ(After({{kA, 2}}, kC, 9).Find(After({{kA, 3}}, kB, 1).mark()),
            Place::kLost);
  // Of one that is older by more openings than a mark names.
  EXPECT_EQ(
      After({{kA, 2}}, kD, 1).Find(After({{kA, 3}, {kB, 1}}, kC, 1).mark()),
      Place::kLost);
  // Of a journal in which nothing was written yet.
  EXPECT_EQ(History({}, kB).Find(After({}, kA, 1).mark()), Place::kLost);
}

TEST(HistoryTest, ACopyThatBranchedOffBeforeIsAnother) {
  const History ours = After({{kA, 5}}, kB, 2);
  EXPECT_EQ(ours.Find(After({{kA, 4}}, kC, 7).mark()), Place::kOther);
  EXPECT_EQ(ours.Find(After({{kA, 5}}, kC, 7).mark()), Place::kOther);
  // Nothing is in common any more.
  EXPECT_EQ(ours.Find(After({{kC, 4}}, kD, 3).mark()), Place::kOther);
  EXPECT_EQ(ours.Find(After({}, kD, 7).mark()), Place::kOther);
}

// What agent "a" was told last.
HistoryMark MarkOf(const TestCluster& t, const std::string& agent) {
  return t.Got<HistoryMark>(agent).value_or(HistoryMark{});
}

TEST(OldState, AgentsAreToldOfEveryBatchBeforeWhatItIsFor) {
  TestCluster t;
  t.FormFour();
  const HistoryMark formed = MarkOf(t, "b");
  EXPECT_FALSE(formed.empty());
  t.Leave("a", 0, "was killed by signal 9");
  EXPECT_EQ(MarkOf(t, "b").batches, formed.batches + 1);
  t.RestartCoordinator();
  t.Connect("b", "y", /*same_process=*/true);
  EXPECT_EQ(t.Got<protocol::Welcome>("b")->history.batches, formed.batches + 1);
}

TEST(OldState, ARestoredCopyIsRefusedByTheFirstWhoKnowsMore) {
  TestCluster t;
  t.Connect("c", "x");
  t.FormFour();
  t.BackUp();
  const uint64_t records = t.journal().groups.at(t.group).generation.number;
  t.Leave("a", 0, "was killed by signal 9");
  t.Restore();
  // A newcomer is let in as long as nobody knows more.
  t.Connect("d", "x");
  EXPECT_TRUE(t.Got<protocol::Welcome>("d").has_value());
  t.Connect("b", "y", /*same_process=*/true);
  for (const char* agent : {"b", "d"}) {
    EXPECT_THAT(std::string(t.Closed(agent).message()),
                AllOf(HasSubstr("THE STATE DIRECTORY IS AN OLDER COPY"),
                      HasSubstr("agent 'b' was told"),
                      HasSubstr("start it on the newest state directory")))
        << agent;
  }
  // And from then on it takes nobody, forms nothing and is given no orders.
  t.Clear();
  t.Connect("e", "x");
  EXPECT_FALSE(t.Got<protocol::Welcome>("e").has_value());
  t.Advance(absl::Seconds(100));
  EXPECT_TRUE(t.records().empty());
  EXPECT_EQ(t.journal().groups.at(t.group).generation.number, records);
  EXPECT_EQ(t.state().SetPin(t.group, {}, t.now()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(OldState, WhatWasLostAndToldToNobodyIsNoReasonToRefuse) {
  TestCluster t;
  t.FormFour();
  t.BackUp();
  t.RestartCoordinator();
  t.RestartCoordinator();
  t.Restore();
  t.Connect("b", "y", /*same_process=*/true);
  EXPECT_TRUE(t.Got<protocol::Welcome>("b").has_value());
}

TEST(OldState, WhoFollowedAnOlderCopyIsRefusedAlone) {
  TestCluster t;
  t.FormFour();
  t.BackUp();
  t.Leave("a", 0, "was killed by signal 9");
  const TestCluster::Copy newest = t.Restore();
  t.Connect("d", "x");
  t.Join("d", 0, 1, "run-2");
  t.Pin(Pin{protocol::Mode::kFull, protocol::Codec::kFp32});
  ASSERT_FALSE(MarkOf(t, "d").empty());
  t.Restore(newest);
  t.Connect("b", "y", /*same_process=*/true);
  t.Connect("d", "x", /*same_process=*/true);
  EXPECT_THAT(std::string(t.Closed("d").message()),
              AllOf(HasSubstr("two copies"), HasSubstr("restart the agent")));
  EXPECT_TRUE(t.Closed("b").ok());
  // As it says.
  t.Connect("d", "x");
  EXPECT_TRUE(t.Got<protocol::Welcome>("d").has_value());
}

}  // namespace
}  // namespace pactrain::coordinator
