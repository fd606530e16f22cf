#include "coordinator/driver/audit_trail.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::ElementsAre;

const protocol::Caller kAgent = {"spiffe://pactrain/agent/a", "7F"};

// Of one source and job.
constexpr uint64_t kMost = LineBudget::kMaxLinesOfOne / 2;

class AuditTrailTest : public ::testing::Test {
 protected:
  AuditTrail::Time Now() const { return {now_, absl::UnixEpoch()}; }
  // Agent "a" is welcomed on stream 1.
  void Hello() { Hello(kAgent); }
  void Hello(const protocol::Caller& caller, const std::string& name = "a") {
    trail_.OnMessage(
        name == "a" ? 1 : 2, caller,
        protocol::AgentHello{name, {1, 1}, "x", "127.0.0.1:9", "t", ""}, {}, {},
        Now());
  }
  // The same with so many ranks.
  static Recovered Running(uint32_t ranks) {
    Recovered known = Running();
    protocol::Member& member = known.groups[{"job", 0}].generation.members[0];
    member.ranks.clear();
    member.attach_ids.clear();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      member.ranks.push_back(rank);
      member.attach_ids.push_back({9, rank});
    }
    return known;
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
  const auto lines =
      trail_.LinesOf({GroupForgotten{{"job", 0}, "for job 'b' of agent 'b'"}},
                     {kAgent}, {}, Now());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].kind, "job forgotten");
  EXPECT_EQ(lines[0].what, "to make room");
  EXPECT_EQ(lines[0].why, "for job 'b' of agent 'b'");
}

TEST_F(AuditTrailTest, NothingThatComesWithStepsMakesALine) {
  EXPECT_TRUE(
      trail_
          .LinesOf({MaskSetStable{}, StepsReserved{}, TrainersDetached{}}, {},
                   {}, Now())
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

TEST_F(AuditTrailTest, sec_audit_RanksThatLeaveInOneMessageAreOneLine) {
  Hello();
  trail_.Take(Now());
  const protocol::GroupId job{"job", 0};
  protocol::LocalTrainers local{job, 1, {}, {}, {}};
  for (uint32_t rank = 0; rank < 32; ++rank) {
    local.left.push_back(
        {job, rank, {9, rank}, rank == 1 ? "killed by signal 9" : "detached"});
  }
  trail_.OnMessage(1, kAgent, local, {}, Running(32), Now());
  const auto lines = Waiting();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].kind, "leave");
  EXPECT_EQ(lines[0].what,
            "ranks 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, "
            "18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31 of "
            "generation 3");
  EXPECT_EQ(lines[0].why, "detached");
  EXPECT_EQ(lines[1].what, "rank 1 of generation 3");
  EXPECT_EQ(lines[1].why, "killed by signal 9");
}

TEST_F(AuditTrailTest, sec_audit_WhatOneSourceCausesIsLeftOutAndCounted) {
  for (uint64_t i = 0; i < kMost; ++i) Hello();
  EXPECT_EQ(Lines(), kMost);
  trail_.Take(Now());
  now_ += absl::Minutes(1);
  for (int i = 0; i < 7; ++i) Hello();
  auto lines = Waiting();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].kind, "left out");
  EXPECT_EQ(lines[0].caller.who, kAgent.who);
  EXPECT_EQ(lines[0].what, "more lines that count as its");
  EXPECT_EQ(lines[0].why,
            "more than 1000 in ten minutes, or of one job more than are left "
            "then");
  trail_.Take(Now());
  // Of others, refusals and alarms are told.
  Hello({"spiffe://pactrain/agent/b", "8F"}, "b");
  trail_.OnRefused({"call refused", kAgent, "", "x", "y", ""}, Now());
  Effects alarming;
  alarming.alarms.push_back({{"job", 0}, "a", "enormous"});
  trail_.OnMessage(1, kAgent, protocol::StepReport{}, alarming, Running(),
                   Now());
  EXPECT_EQ(Lines(), 3u);
  trail_.Take(Now());
  now_ += LineBudget::kTime;
  trail_.OnTick({now_, absl::UnixEpoch() + LineBudget::kTime});
  lines = Waiting();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].kind, "left out");
  EXPECT_EQ(lines[0].caller.who, kAgent.who);
  EXPECT_EQ(lines[0].what,
            "7 lines that counted as its since 1970-01-01T00:00:00.000Z");
  Hello();
  EXPECT_EQ(Lines(), 2u);
}

TEST_F(AuditTrailTest, sec_audit_WhatAnOperatorDoesIsNeverLeftOut) {
  const protocol::GroupId job{"job", 0};
  Hello();
  for (uint64_t i = 0; i < kMost; ++i) {
    trail_.LinesOf({GenerationEnded{job, 3, "", 0}}, {kAgent}, Running(),
                   Now());
  }
  const std::vector<JournalRecord> records = {
      PinSet{job, {}},
      IdentityDenied{"agent/b", "eve", ""},
      IdentityReadmitted{"agent/b"},
      AgentDrained{"b", {}, "eve"},
      AgentUndrained{"b", "by an operator"},
      LineageEnded{job, {}, "", ""},
      GenerationEnded{job, 3, "", 0}};
  const auto kinds = [&](bool operates) {
    std::vector<std::string> all;
    for (const auto& line :
         trail_.LinesOf(records, {kAgent, operates}, Running(), Now())) {
      all.push_back(line.kind);
    }
    return all;
  };
  EXPECT_THAT(kinds(true),
              ElementsAre("pin", "evicted", "readmitted", "agent drained",
                          "agent undrained", "lineage ended"));
  EXPECT_EQ(kinds(false).back(), "agent undrained");
}

TEST_F(AuditTrailTest, sec_audit_NoneHidesWhatHappensToAJobOfOthers) {
  const protocol::Caller other = {"spiffe://pactrain/agent/b", "8F"};
  Hello();
  Hello(other, "b");
  trail_.Take(Now());
  Recovered known;
  const auto add = [&](const std::string& job, const std::string& agent) {
    known.groups[{job, 0}].generation.members.push_back(
        {agent, {2, 1}, "x", "127.0.0.1:9", {0}, {{9, 8}}});
  };
  const auto end = [&](const std::string& job) {
    return trail_
        .LinesOf({GenerationEnded{{job, 0}, 3, "", 0}}, {kAgent}, known, Now())
        .size();
  };
  add("shared", "a");
  add("shared", "b");
  add("own", "b");
  size_t lines = 0;
  for (uint64_t i = 0; i < 3 * kMost; ++i) lines += end("shared");
  EXPECT_EQ(lines, 2 * kMost);  // Both have paid,
  EXPECT_EQ(Waiting().back().kind, "left out");
  EXPECT_EQ(Waiting().back().job, "shared");
  trail_.Take(Now());
  // and still have some for what is no line of that job.
  Hello(other, "b");
  EXPECT_EQ(Waiting().back().kind, "agent connected");
  EXPECT_EQ(end("own"), 1u);
  // Who has caused too much is of a job whose other agent has not.
  EXPECT_EQ(end("shared"), 0u);
  add("shared", "c");
  EXPECT_EQ(end("shared"), 1u);
}

// Also of who begins it anew alone.
TEST_F(AuditTrailTest, sec_audit_WhoTakesAJobOverDoesNotHideThat) {
  Hello();
  const protocol::GroupId job{"job", 0};
  for (uint64_t i = 0; i <= kMost; ++i) {
    trail_.LinesOf({GenerationEnded{job, 3, "", 0}}, {kAgent}, Running(),
                   Now());
  }
  GenerationFormed formed;
  formed.generation.group = job;
  formed.generation.members = Running().groups[job].generation.members;
  Recovered known = Running();
  EXPECT_TRUE(trail_.LinesOf({formed}, {kAgent}, known, Now()).empty());
  known.groups[job].generation.members[0].agent = "b";
  EXPECT_EQ(trail_.LinesOf({formed}, {kAgent}, known, Now()).size(), 2u);
}

TEST_F(AuditTrailTest, AllAgentsThatOneJobKeyNamesAreOneAlsoThoseAway) {
  Hello();
  Recovered known = Running();
  protocol::Member& member = known.groups[{"job", 0}].generation.members[0];
  size_t lines = 0;
  for (uint64_t i = 0; i < 2 * kMost; ++i) {
    member.agent = absl::StrCat("n", i, "..vision");
    lines +=
        trail_
            .LinesOf({GenerationEnded{{"job", 0}, 3, "", 0}}, {}, known, Now())
            .size();
  }
  EXPECT_EQ(lines, kMost);
}

TEST_F(AuditTrailTest, InPlainTextNothingIsLeftOut) {
  Hello(protocol::Caller());
  Recovered known = Running();
  known.groups[{"job", 0}].generation.members[0].agent = "away";
  for (uint64_t i = 0; i <= kMost; ++i) {
    EXPECT_EQ(
        trail_
            .LinesOf({GenerationEnded{{"job", 0}, 3, "", 0}}, {}, known, Now())
            .size(),
        1u);
  }
}

TEST_F(AuditTrailTest, sec_limits_WaitingLinesAreBoundedAndTheRestIsCounted) {
  // Of several, since each has a budget.
  for (size_t i = 0; i < AuditTrail::kMaxWaiting; ++i) {
    Hello({absl::StrCat("spiffe://pactrain/agent/n", i % 10), "7F"});
  }
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
