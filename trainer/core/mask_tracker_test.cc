#include "trainer/core/mask_tracker.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace pactrain::trainer {
namespace {

// A model whose weights the test changes, and its tracker.
class Model {
 public:
  explicit Model(std::vector<MaskTracker::Parameter> parameters,
                 uint32_t settle = 10)
      : tracker(parameters, settle) {
    for (const auto& parameter : parameters) {
      weights.emplace_back(parameter.elements, 1.0f);
    }
  }
  // Returns how many elements were looked at.
  uint64_t Step() {
    uint64_t seen = 0;
    const std::vector<pt_range> due = tracker.due();
    for (size_t i = 0; i < due.size(); ++i) {
      tracker.Look(i, weights[due[i].parameter].data() + due[i].first);
      seen += due[i].elements;
    }
    tracker.EndStep();
    return seen;
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }

  MaskTracker tracker;
  std::vector<std::vector<float>> weights;
};

TEST(MaskTrackerTest, LooksAtAllFirstAndThenAtAQuarterInTurn) {
  Model model({{"a", 1000}, {"b", 64}, {"c", 10000}});
  EXPECT_EQ(model.Step(), 11064u);
  uint64_t seen = 0;
  for (int i = 0; i < 4; ++i) {
    const uint64_t part = model.Step();
    EXPECT_NEAR(static_cast<double>(part), 11064 / 4.0, 64);
    seen += part;
  }
  EXPECT_EQ(seen, 11064u);
}

TEST(MaskTrackerTest, IsSettledAfterSoManyUnchangedSteps) {
  Model model({{"a", 1000}});
  model.Steps(10);
  EXPECT_FALSE(model.tracker.settled());
  model.Step();
  EXPECT_TRUE(model.tracker.settled());
  EXPECT_EQ(model.tracker.last_change(), 0u);
}

TEST(MaskTrackerTest, AWeightThatGoesAndOneThatComesBackStartTheCountAnew) {
  for (const float value : {0.0f, 1.0f}) {
    Model model({{"a", 1000}});
    model.weights[0][999] = 1 - value;
    model.Steps(20);
    ASSERT_TRUE(model.tracker.settled());
    model.weights[0][999] = value;
    model.Steps(4);
    EXPECT_FALSE(model.tracker.settled());
    EXPECT_LT(model.tracker.steps_unchanged(), 4u);
    EXPECT_EQ(model.tracker.bits(0).back() >> 999 % 64 & 1, value != 0);
    EXPECT_EQ(model.tracker.moves(0).gone, value == 0 ? 1u : 0u);
    EXPECT_EQ(model.tracker.moves(0).back, value == 0 ? 0u : 1u);
    const uint64_t seen = model.tracker.last_change();
    EXPECT_GE(seen, 20u);
    EXPECT_LE(seen, 23u);
    model.Steps(10);
    EXPECT_TRUE(model.tracker.settled());
    EXPECT_EQ(model.tracker.last_change(), seen);
  }
}

TEST(MaskTrackerTest, WhatIsSettledWasLookedAtSinceTheLastChange) {
  for (const uint32_t settle : {1u, 2u, 3u, 4u, 7u}) {
    Model model({{"a", 500}, {"b", 500}}, settle);
    model.Step();
    for (int at = 0; at < 40; ++at) {
      // All at once, and of a part maybe just after it was looked at.
      for (auto& weights : model.weights) {
        for (float& weight : weights) weight = 1 - weight;
      }
      do {
        model.Step();
      } while (model.tracker.steps_unchanged() != 0);
      while (!model.tracker.settled()) model.Step();
      for (uint32_t p = 0; p < 2; ++p) {
        for (uint64_t i = 0; i < 500; ++i) {
          ASSERT_EQ(model.tracker.bits(p)[i / 64] >> i % 64 & 1,
                    model.weights[p][i] != 0);
        }
      }
    }
  }
}

TEST(MaskTrackerTest, AStepThatIsTriedAgainLooksAtTheSame) {
  Model model({{"a", 1000}});
  model.Steps(3);
  const std::vector<pt_range> due = model.tracker.due();
  model.tracker.Look(0, model.weights[0].data() + due[0].first);
  EXPECT_EQ(model.tracker.due()[0].first, due[0].first);
  model.Step();
  EXPECT_EQ(model.tracker.steps_unchanged(), 3u);
}

TEST(MaskTrackerTest, AfterARestartAllIsLookedAtAndCountedFromThere) {
  Model model({{"a", 1000}});
  model.Steps(20);
  model.tracker.Restart();
  EXPECT_EQ(model.Step(), 1000u);
  EXPECT_EQ(model.tracker.steps_unchanged(), 0u);
  model.Steps(10);
  EXPECT_TRUE(model.tracker.settled());
}

TEST(MaskTrackerTest, AfterARestartANewcomerLooksAtTheSame) {
  Model stayed({{"a", 1000}});
  stayed.Steps(22);
  stayed.tracker.Restart();
  Model newcomer({{"a", 1000}});
  for (int step = 0; step < 9; ++step) {
    ASSERT_EQ(stayed.tracker.due()[0].first, newcomer.tracker.due()[0].first);
    stayed.Step();
    newcomer.Step();
  }
}

TEST(MaskTrackerTest, SaysWhatMovedMostSinceItWasSettled) {
  Model model({{"few", 100}, {"many", 3000}, {"none", 10}});
  model.Steps(11);
  EXPECT_EQ(model.tracker.Moved(), "");
  model.weights[0].assign(100, 0.0f);
  model.weights[1].assign(3000, 0.0f);
  model.Steps(30);
  EXPECT_EQ(model.tracker.Moved(), "many 3,000, few 100 elements moved");
  model.weights[0][5] = 1.0f;
  model.Steps(4);
  EXPECT_EQ(model.tracker.Moved(), "few 1 elements moved");
  EXPECT_EQ(model.tracker.moves(0).all(), 101u);
}

TEST(MaskTrackerTest, WhatMovedIsNeverALongText) {
  std::vector<MaskTracker::Parameter> parameters;
  for (int i = 0; i < 40; ++i) {
    parameters.push_back({"some.layer." + std::to_string(i), 64});
  }
  parameters.push_back({std::string(500, 'x') + ".weight", 6400});
  Model model(parameters);
  model.Step();
  for (auto& weights : model.weights) weights.assign(weights.size(), 0.0f);
  model.Steps(4);
  const std::string text = model.tracker.Moved();
  EXPECT_LE(text.size(), MaskTracker::kMaxText);
  EXPECT_NE(text.find("x.weight 6,400 elements moved"), std::string::npos);
}

TEST(MaskTrackerTest, AModelWithoutParametersSettles) {
  Model model({}, 2);
  model.Steps(3);
  EXPECT_TRUE(model.tracker.settled());
}

}  // namespace
}  // namespace pactrain::trainer
