#include "coordinator/page/conditions.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "base/version.h"
#include "coordinator/page/test_snapshots.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

size_t IndexOf(std::string_view name) {
  const auto rules = AlertRules();
  const auto it = std::find_if(rules.begin(), rules.end(),
                               [&](const auto& r) { return r.name == name; });
  EXPECT_NE(it, rules.end()) << name;
  return static_cast<size_t>(it - rules.begin());
}

class ConditionsTest : public ::testing::Test {
 protected:
  ConditionsTest() { snapshot_.agents[0].version = base::kVersion; }

  void Observe(double seconds = 6) {
    now_ += seconds;
    for (const GroupSnapshot& group : snapshot_.groups) {
      jobs_[group.group].Observe(group, now_);
    }
    links_.Observe(snapshot_, now_);
    conditions_.Evaluate({snapshot_, jobs_, links_, certificates_, insecure_,
                          now_, absl::UnixEpoch() + absl::Seconds(now_)});
  }
  const std::vector<Conditions::Standing>& Of(std::string_view name) const {
    return conditions_.standing()[IndexOf(name)];
  }
  GroupSnapshot& job() { return snapshot_.groups[0]; }

  StateSnapshot snapshot_ = RunningSnapshot();
  std::map<protocol::GroupId, JobTrack> jobs_;
  LinkTrack links_;
  std::optional<base::CertificateLives> certificates_;
  bool insecure_ = false;
  double now_ = 0;
  Conditions conditions_;
};

TEST(AlertRulesTest, AllButTheCoordinatorsOwnEndAreSeenHere) {
  EXPECT_THAT(AlertRules(), SizeIs(testing::Ge(15)));
  for (const AlertRule& rule : AlertRules()) {
    EXPECT_EQ(Conditions::IsSeenHere(rule),
              std::string_view(rule.name) != "PactrainCoordinatorLost")
        << rule.name << ": conditions.cc answers each alert of alerts.yml";
    EXPECT_NE(std::string_view(rule.to_do), "");
  }
}

TEST(AlertRulesTest, NumbersAreThoseOfTheRules) {
  const AlertRule& slow = AlertRules()[IndexOf("PactrainLinkSlow")];
  EXPECT_EQ(slow.threshold, 0.5);
  EXPECT_EQ(slow.for_seconds, 900);
  const AlertRule& churn = AlertRules()[IndexOf("PactrainMaskChurn")];
  EXPECT_EQ(churn.threshold, 6);
  EXPECT_EQ(churn.window_seconds, 3600);
  EXPECT_EQ(AlertRules()[IndexOf("PactrainSlowerThanFull")].threshold, 1.1);
}

TEST_F(ConditionsTest, OfAJobThatIsWellNothingIsTrue) {
  Observe();
  Observe();
  for (const auto& standing : conditions_.standing()) {
    EXPECT_THAT(standing, IsEmpty());
  }
}

TEST_F(ConditionsTest, AnAlertIsToldOfAfterItsTime) {
  job().lost_agents = {"b0"};
  Observe();
  ASSERT_THAT(Of("PactrainAgentLost"), SizeIs(1));
  EXPECT_FALSE(Of("PactrainAgentLost")[0].fires);
  Observe(AlertRules()[IndexOf("PactrainAgentLost")].for_seconds);
  EXPECT_TRUE(Of("PactrainAgentLost")[0].fires);
  EXPECT_EQ(Of("PactrainAgentLost")[0].since, 6);
  job().lost_agents.clear();
  Observe();
  EXPECT_THAT(Of("PactrainAgentLost"), IsEmpty());
}

TEST_F(ConditionsTest, EachIsTrueInItsFault) {
  const std::pair<const char*, std::function<void()>> faults[] = {
      {"PactrainJournalReadOnly", [&] { snapshot_.read_only = true; }},
      {"PactrainRiskAboveBound", [&] { job().risk = 0.4; }},
      {"PactrainNormAlarm", [&] { job().norm_alarms_total = 1; }},
      {"PactrainMaskChurn", [&] { job().account.mask_changes = 7; }},
      {"PactrainFallbacks",
       [&] { job().account.fallbacks = {2, 9, 1, 0, 9, 1, 9}; }},
      {"PactrainVersionSkew", [&] { snapshot_.agents[1].version = "0"; }},
      {"PactrainInsecureNetwork", [&] { insecure_ = true; }},
      {"PactrainCertificateEnds",
       [&] {
         const base::CertificateLife over = {absl::UnixEpoch() - absl::Hours(1),
                                             absl::UnixEpoch()};
         certificates_ = {over, over};
       }},
      {"PactrainSlowerThanFull",
       [&] {
         job().account.mode_interval_seconds = {1, 1.2, 0};
         job().account.full_at_least_seconds = 1;
       }},
      {"PactrainStraggler",
       [&] {
         job().paces = {{"a0", 0.9, 1}, {"a1", 0.9, 1}, {"b0", 0.1, 1}};
       }},
      {"PactrainLinkAsymmetric",
       [&] {
         job().exchange_share = 0.3;
         job().links[0].goodput_bytes_per_second = 2e6;
       }},
      {"PactrainStepStalls",
       [&] {
         job().waits_for = "agent b0 (site b): rank 1 has not submitted";
       }},
      {"PactrainJobFailed",
       [&] {
         job().phase = GroupPhase::kFailed;
         job().ended_seconds = 1;
       }},
      {"PactrainJobWaits", [&] { job().phase = GroupPhase::kWaiting; }},
  };
  Observe();
  for (const auto& [name, cause] : faults) {
    EXPECT_THAT(Of(name), IsEmpty()) << name;
    cause();
    Observe();
    EXPECT_THAT(Of(name), testing::Not(IsEmpty())) << name;
  }
}

TEST_F(ConditionsTest, WhatSomebodyPinnedIsNoFallback) {
  Observe();
  for (size_t i = 0; i < kFallbacks.size(); ++i) {
    if (kFallbacks[i].cause != FallbackCause::kPin) continue;
    job().account.fallbacks[i] = 9;
  }
  Observe();
  EXPECT_THAT(Of("PactrainFallbacks"), IsEmpty());
}

TEST_F(ConditionsTest, ALinkThatIsWaitedForIsSlowBesideItsHour) {
  job().exchange_share = 0.3;
  for (int i = 0; i < 5; ++i) Observe();
  job().links[0].goodput_bytes_per_second = 4e6;
  job().links[1].goodput_bytes_per_second = 4e6;
  Observe();
  ASSERT_THAT(Of("PactrainLinkSlow"), SizeIs(2));
  EXPECT_THAT(Of("PactrainLinkSlow")[0].finding.text,
              HasSubstr("from a to b go 32 Mbit/s, and went 80 Mbit/s"));
  job().exchange_share = 0.1;
  Observe();
  EXPECT_THAT(Of("PactrainLinkSlow"), IsEmpty());
}

// A link that is slow for all modes, or FULL of long ago, gave harmful advice.
TEST_F(ConditionsTest, SlowerThanFullIsToldByWhatFullWouldTakeNow) {
  job().account.mode_interval_seconds = {1, 12, 0};
  Observe();
  EXPECT_THAT(Of("PactrainSlowerThanFull"), IsEmpty()) << "not known";
  job().account.full_at_least_seconds = 11.5;
  Observe();
  EXPECT_THAT(Of("PactrainSlowerThanFull"), IsEmpty());
}

TEST_F(ConditionsTest, ALinkOutsideThePlanIsNotWaitedFor) {
  job().exchange_share = 0.5;
  job().links.push_back({"a0", "a", "c", 1, 1, 1e6, 0.02});
  Observe();
  EXPECT_TRUE(links_.links().at({"a", "b"}).awaited);
  EXPECT_FALSE(links_.links().at({"a", "c"}).awaited);
}

TEST_F(ConditionsTest, TheLostAreNamedAlsoAfterTheEnd) {
  job().phase = GroupPhase::kFailed;
  job().lost_agents = {"b0"};
  Observe();
  ASSERT_THAT(Of("PactrainAgentLost"), SizeIs(1));
  EXPECT_THAT(Of("PactrainAgentLost")[0].finding.text, HasSubstr("b0"));
}

TEST_F(ConditionsTest, OfAFailedJobIsToldForAnHour) {
  job().phase = GroupPhase::kFailed;
  job().reason = "agent b0 (site b) is lost";
  job().ended_seconds = 3000;
  Observe();
  ASSERT_THAT(Of("PactrainJobFailed"), SizeIs(1));
  EXPECT_TRUE(Of("PactrainJobFailed")[0].fires);
  EXPECT_THAT(Of("PactrainJobFailed")[0].finding.text, HasSubstr("is lost"));
  job().ended_seconds = 3700;
  Observe();
  EXPECT_THAT(Of("PactrainJobFailed"), IsEmpty());
}

TEST_F(ConditionsTest, OfTwoTheStragglerTakesOneAndAHalfTimesAsLong) {
  for (const double seconds : {1.4, 1.6}) {
    job().paces = {{"a0", 0, 1}, {"b0", 0, seconds}};
    Observe(700);  // Nothing is left of the pace before.
    EXPECT_THAT(Of("PactrainStraggler"), SizeIs(seconds > 1.5 ? 1 : 0));
  }
}

// As Prometheus has it: one slow report among many is none.
TEST_F(ConditionsTest, AStragglerIsSlowInTheMeanOfTenMinutes) {
  ASSERT_EQ(AlertRules()[IndexOf("PactrainStraggler")].window_seconds, 600);
  job().paces = {{"a0", 0, 1}, {"b0", 0, 1}};
  for (int i = 0; i < 20; ++i) Observe();
  job().paces = {{"a0", 0, 1}, {"b0", 0, 9}};
  Observe();
  EXPECT_THAT(Of("PactrainStraggler"), IsEmpty());
  for (int i = 0; i < 20; ++i) Observe();
  EXPECT_THAT(Of("PactrainStraggler"), SizeIs(1));
  job().phase = GroupPhase::kFailed;
  Observe();
  job().phase = GroupPhase::kRunning;
  job().paces = {{"a0", 0, 1}, {"b0", 0, 1}};
  Observe();
  EXPECT_THAT(Of("PactrainStraggler"), IsEmpty()) << "of its new generation";
  job().paces = {{"a0", 0, 1}, {"b0", 0, 9}};
  for (int i = 0; i < 5; ++i) Observe();
  EXPECT_THAT(Of("PactrainStraggler"), SizeIs(1));
  job().paces = {{"a0", 0, 1}, {"b0", 0, 1}};
  for (int i = 0; i < 120; ++i) Observe();
  EXPECT_THAT(Of("PactrainStraggler"), IsEmpty());
}

TEST_F(ConditionsTest, TheStragglerIsNamed) {
  job().paces = {{"a0", 0.9, 1}, {"a1", 0.9, 1}, {"b0", 0.1, 1}};
  Observe();
  ASSERT_THAT(Of("PactrainStraggler"), SizeIs(1));
  EXPECT_THAT(Of("PactrainStraggler")[0].finding.text,
              HasSubstr("all wait for agent b0"));
}

}  // namespace
}  // namespace pactrain::coordinator
