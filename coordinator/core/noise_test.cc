#include "coordinator/core/noise.h"

#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

// Agents "a" in site "x" and "b" in site "y", with two trainers each.
protocol::Generation TwoSites() {
  protocol::Generation g;
  g.world_size = 4;
  g.members = {{"a", {}, "x", "", {0, 1}, {}}, {"b", {}, "y", "", {2, 3}, {}}};
  return g;
}

protocol::StepReport::Noise Sample(double error, double clip) {
  protocol::StepReport::Noise sample;
  sample.step = 8;
  sample.decision_version = 2;
  sample.local = 2;
  sample.site = 1.6;
  sample.encoded = 8;
  sample.error = error;
  sample.clip = clip;
  return sample;
}

TEST(Noise, AStepCountsOnceAllAgentsHaveReportedIt) {
  Noise noise(TwoSites());
  noise.Add("a", Sample(0.4, 0));
  EXPECT_FALSE(noise.Newest().has_value());
  noise.Add("stranger", Sample(0.4, 0));
  EXPECT_FALSE(noise.Newest().has_value());
  noise.Add("b", Sample(0.4, 0));
  ASSERT_TRUE(noise.Newest().has_value());
  // 4 (2 - 1.6 / 2) 2 / 2.
  EXPECT_DOUBLE_EQ(noise.Newest()->variance, 4.8);
  EXPECT_FALSE(noise.Newest(3).has_value());
}

TEST(Noise, TheClippedPartOfTheRiskIsApart) {
  Noise noise(TwoSites());
  noise.Add("a", Sample(0.4, 0.1));
  noise.Add("b", Sample(0.8, 0.2));
  EXPECT_DOUBLE_EQ(noise.Newest(2)->risk(), 1.2 / 4.8);
  EXPECT_DOUBLE_EQ(noise.Newest(2)->risk_clip(), 0.3 / 4.8);
}

// Trainers with the same gradients: what is left of V is how floats round, and
// r would be any number up to 1e10.
TEST(Noise, WhatIsBelowTheResolutionOfFloatsIsNotKnown) {
  Noise noise(TwoSites());
  for (const char* agent : {"a", "b"}) {
    protocol::StepReport::Noise sample = Sample(0.4, 0);
    sample.site = 4 - 1e-7;  // Two equal gradients: 2 * local.
    noise.Add(agent, sample);
  }
  EXPECT_EQ(noise.steps(), 1);
  EXPECT_FALSE(noise.Newest().has_value());
  for (const char* agent : {"a", "b"}) {
    protocol::StepReport::Noise sample = Sample(0.4, 0);
    sample.step = 16;
    sample.site = 4 - 1e-2;
    noise.Add(agent, sample);
  }
  ASSERT_TRUE(noise.Newest().has_value());
  EXPECT_LT(noise.Newest()->risk(), 100);
}

}  // namespace
}  // namespace pactrain::coordinator
