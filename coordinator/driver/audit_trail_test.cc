#include "coordinator/driver/audit_trail.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

const protocol::Caller kAgent = {"spiffe://pactrain/agent/a", "7F"};

class AuditTrailTest : public ::testing::Test {
 protected:
  AuditTrail::Time Now() const { return {now_, absl::UnixEpoch()}; }
  // Agent "a" is welcomed on stream 1.
  void Hello() {
    trail_.OnMessage(
        1, kAgent,
        protocol::AgentHello{"a", {1, 1}, "x", "127.0.0.1:9", "t", ""}, {}, {},
        Now());
  }
  static Recovered Running() {
    Recovered known;
    protocol::Generation& generation = known.groups[{"job", 0}].generation;
    generation.number = 3;
    generation.members = {{"a", {1, 1}, "x", "127.0.0.1:9", {4}, {{9, 9}}}};
    return known;
  }
  void Left(uint32_t rank, const protocol::Digest& attach) {
    const protocol::GroupId job{"job", 0};
    trail_.OnMessage(
        1, kAgent,
        protocol::LocalTrainers{
            job, ++revision_, {}, {{job, rank, attach, "detached"}}, {}},
        {}, Running(), Now());
  }
  std::vector<protocol::AuditEvent> Waiting() const {
    AuditTrail copy = trail_;
    return copy.Take(Now());
  }
  size_t Lines() const { return Waiting().size(); }

  absl::Duration now_ = absl::Seconds(1);
  uint64_t revision_ = 0;
  AuditTrail trail_;
};

TEST_F(AuditTrailTest, WhoAndWhenAreInEveryLine) {
  Hello();
  const auto lines = Waiting();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].kind, "agent connected");
  EXPECT_EQ(lines[0].caller.who, kAgent.who);
  EXPECT_EQ(lines[0].caller.serial, "7F");
  EXPECT_EQ(lines[0].at, "1970-01-01T00:00:00.000Z");
}

TEST_F(AuditTrailTest, AMembersLeaveIsToldOnceAndNobodyElses) {
  Hello();
  trail_.Take(Now());
  Left(5, {9, 9});  // No such rank.
  Left(4, {9, 8});  // Another trainer's.
  EXPECT_EQ(Lines(), 0u);
  Left(4, {9, 9});
  Left(4, {9, 9});
  EXPECT_EQ(Lines(), 1u);
}

TEST_F(AuditTrailTest, ARefusedJoinAndARefusedAgentAreToldWithTheReason) {
  Effects effects;
  effects.sends.push_back(
      {1, protocol::JoinRefused{{"job", 0}, 4, {9, 9}, "models differ"}});
  effects.closes.push_back({1, absl::AlreadyExistsError("the name is taken")});
  trail_.OnMessage(
      1, kAgent, protocol::AgentHello{"a", {1, 1}, "x", "127.0.0.1:9", "t", ""},
      effects, {}, Now());
  const auto lines = Waiting();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].kind, "agent refused");
  EXPECT_EQ(lines[0].why, "the name is taken");
  EXPECT_EQ(lines[1].kind, "join refused");
  EXPECT_EQ(lines[1].why, "models differ");
}

TEST_F(AuditTrailTest, sec_audit_AForgottenJobIsToldWithForWhom) {
  const auto lines = trail_.LinesOf(
      {GroupForgotten{{"job", 0}, "for job 'b' of agent 'b'"}}, kAgent, Now());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].kind, "job forgotten");
  EXPECT_EQ(lines[0].what, "to make room");
  EXPECT_EQ(lines[0].why, "for job 'b' of agent 'b'");
}

TEST_F(AuditTrailTest, NothingThatComesWithStepsMakesALine) {
  EXPECT_TRUE(
      trail_
          .LinesOf({MaskSetStable{}, StepsReserved{}, TrainersDetached{}}, {},
                   Now())
          .empty());
  trail_.OnMessage(1, kAgent, protocol::StepReport{}, {}, Running(), Now());
  trail_.OnMessage(1, kAgent, protocol::Heartbeat{}, {}, Running(), Now());
  EXPECT_EQ(Lines(), 0u);
}

TEST_F(AuditTrailTest, TheSameRefusalMakesOneLineInTenMinutes) {
  const protocol::AuditEvent event = {"call refused", kAgent, "", "x", "y", ""};
  for (int i = 0; i < 100; ++i) trail_.OnRefused(event, Now());
  EXPECT_EQ(Lines(), 1u);
  now_ += absl::Minutes(10);
  trail_.OnRefused(event, Now());
  EXPECT_EQ(Lines(), 2u);
}

TEST_F(AuditTrailTest, sec_limits_WaitingLinesAreBoundedAndTheRestIsCounted) {
  for (size_t i = 0; i < AuditTrail::kMaxWaiting; ++i) Hello();
  auto lines = Waiting();
  EXPECT_EQ(lines.size(), AuditTrail::kMaxWaiting);
  EXPECT_EQ(lines.back().kind, "agent connected");
  for (const char* left_out : {"1 line", "2 lines"}) {
    Hello();
    lines = Waiting();
    EXPECT_EQ(lines.size(), AuditTrail::kMaxWaiting + 1);
    EXPECT_EQ(lines.back().kind, "left out");
    EXPECT_EQ(lines.back().what, left_out);
  }
  trail_.Take(Now());
  EXPECT_EQ(Lines(), 0u);
}

TEST_F(AuditTrailTest, WhatCouldNotBeWrittenComesFirst) {
  Hello();
  const auto lines = trail_.Take(Now());
  EXPECT_FALSE(trail_.waits());
  trail_.OnAction({"pin", kAgent, "job", "", "", ""}, Now());
  trail_.PutBack(lines);
  ASSERT_EQ(Lines(), 2u);
  EXPECT_EQ(Waiting()[0].kind, "agent connected");
  EXPECT_EQ(Waiting()[1].kind, "pin");
}

}  // namespace
}  // namespace pactrain::coordinator
