#include "trainer/cpp/mask_tracker.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::internal {
namespace {

// Two parameters, of which the second is tracked.
class MaskTrackerTest : public ::testing::Test {
 protected:
  bool Look() {
    return tracker_.Look(
        [&](size_t parameter, uint64_t first, uint64_t elements) {
          EXPECT_EQ(parameter, 1u);
          EXPECT_LE(first + elements, values_.size());
          return values_.data() + first;
        });
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) {
      Look();
      tracker_.EndStep();
    }
  }

  const ParameterTable table_{"Net",
                              {{.name = "bias", .shape = {4}},
                               {.name = "we\x1bight", .shape = {2, 2}}}};
  std::vector<float> values_ = {1, 0, 2, 0};
  MaskTracker tracker_{&table_, {1}, /*settle_steps=*/2};
};

TEST_F(MaskTrackerTest, TheFirstLookIsNewsAndMasksAreWhatIsNotZero) {
  EXPECT_TRUE(Look());
  EXPECT_FALSE(Look());
  EXPECT_THAT(tracker_.masks()[1], ::testing::ElementsAre(1, 0, 1, 0));
  EXPECT_TRUE(tracker_.masks()[0].empty());
  EXPECT_EQ(tracker_.state().moved, "");
}

TEST_F(MaskTrackerTest, AMoveStartsTheCountAnewAndIsNamedInPrintableWords) {
  Steps(3);
  EXPECT_EQ(tracker_.state().steps_unchanged, 2u);
  values_[1] = 5;
  Steps(2);  // One of them sees it.
  EXPECT_LT(tracker_.state().steps_unchanged, 2u);
  EXPECT_EQ(tracker_.state().settle_steps, 2u);
  EXPECT_EQ(tracker_.state().moved, "we?ight 1 elements moved");
  EXPECT_THAT(tracker_.masks()[1], ::testing::ElementsAre(1, 1, 1, 0));
}

TEST_F(MaskTrackerTest, WhatMovedIsNewsUntilItsStepIsCommitted) {
  Steps(3);
  EXPECT_EQ(tracker_.News(/*always=*/false), Digest{});
  const Digest before = tracker_.News(/*always=*/true);
  EXPECT_NE(before, Digest{});
  values_[1] = 5;
  for (int i = 0; i < 2; ++i) {  // One of them sees it.
    Look();
    if (tracker_.News(false) == Digest{}) tracker_.EndStep();
  }
  const Digest news = tracker_.News(false);
  EXPECT_NE(news, Digest{});
  EXPECT_NE(news, before);
  Look();  // The step has failed and is begun again.
  EXPECT_EQ(tracker_.News(false), news);
  tracker_.EndStep();
  EXPECT_EQ(tracker_.News(false), Digest{});
  EXPECT_EQ(tracker_.MovedMost(), "we\x1bight 1");
}

TEST_F(MaskTrackerTest, AfterARestartAllIsNewsAgain) {
  Steps(3);
  tracker_.Restart();
  EXPECT_TRUE(Look());
  tracker_.EndStep();
  EXPECT_EQ(tracker_.state().steps_unchanged, 0u);
}

TEST_F(MaskTrackerTest, AParameterThatIsAllZeroIsNotPruned) {
  values_ = {0, 0, 0, 0};
  Look();
  EXPECT_TRUE(tracker_.masks().empty());
}

}  // namespace
}  // namespace pactrain::internal
