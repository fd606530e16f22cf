#include "agent/core/local_step.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "agent/core/wire_convert.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

constexpr uint32_t kElements = 16;

// Two trainers, each with two buckets of its slot.
class LocalStepTest : public ::testing::Test {
 protected:
  LocalStepTest() {
    for (int trainer = 0; trainer < 2; ++trainer) {
      for (uint32_t i = 0; i < 2 * kElements; ++i) {
        const float value = static_cast<float>((trainer + 1) * (i + 1));
        std::memcpy(slots_[trainer] + 4 * i, &value, 4);
      }
    }
  }

  wire::Submit BucketOf(uint32_t bucket, uint16_t attempt, uint8_t op) {
    auto submit = MakeMessage<wire::Submit>(wire::Kind::kSubmit);
    submit.attempt = attempt;
    submit.bucket = bucket;
    submit.offset = 4 * kElements * bucket;
    submit.elements = submit.filled = kElements;
    submit.mode = 1;
    submit.op = op;
    submit.dtype = 1;
    submit.last = bucket == 1;
    return submit;
  }
  void Submit(int trainer, uint32_t bucket, uint16_t attempt, uint8_t op) {
    Submit(trainer, BucketOf(bucket, attempt, op));
  }
  void Submit(int trainer, const wire::Submit& submit) {
    ASSERT_OK_AND_ASSIGN(const auto problem, step_.Add(trainer, submit));
    EXPECT_FALSE(problem.has_value()) << problem->detail;
  }
  void SubmitAll(uint16_t attempt, uint8_t op = 1) {
    for (int trainer : {0, 1}) {
      for (uint32_t bucket : {0u, 1u}) Submit(trainer, bucket, attempt, op);
    }
  }

  alignas(64) uint8_t slots_[2][8 * kElements];
  LocalStep step_{{{0, slots_[0]}, {1, slots_[1]}}, {1, 1}, 0};
  // (1 + 4) times the squares of 1 to 32.
  const double all_ = 5 * 32 * 33 * 65 / 6;
};

TEST_F(LocalStepTest, SquaresAreOfEverySlotOnce) {
  step_.Reset({}, 1, /*dense=*/false, /*measure=*/true);
  SubmitAll(1);
  EXPECT_EQ(step_.squares(), all_);
}

TEST_F(LocalStepTest, SquaresOfARepeatedAttemptReplaceThoseOfTheFirst) {
  step_.Reset({}, 1, false, true);
  SubmitAll(1);
  step_.Reset({}, 2, false, true);
  EXPECT_EQ(step_.squares(), 0);
  SubmitAll(2);
  EXPECT_EQ(step_.squares(), all_);
}

TEST_F(LocalStepTest, SquaresOfABucketCountOnceAllTrainersHaveSubmittedIt) {
  step_.Reset({}, 1, false, true);
  for (int trainer : {0, 1}) Submit(trainer, 0, 1, 1);
  Submit(0, 1, 1, 1);
  EXPECT_EQ(step_.squares(), 5 * 16 * 17 * 33 / 6);
}

TEST_F(LocalStepTest, SquaresAreOfGradientsAndOnlyWhereTheyAreWanted) {
  step_.Reset({}, 1, false, /*measure=*/false);
  SubmitAll(1);
  EXPECT_EQ(step_.squares(), 0);
  step_.Reset({}, 1, false, true);
  SubmitAll(1, /*op=*/2);  // A broadcast.
  EXPECT_EQ(step_.squares(), 0);
}

TEST_F(LocalStepTest, ASumKeepsItsMemoryUnlessItIsStillOnItsWay) {
  step_.Reset({}, 1, false, false);
  SubmitAll(1);
  const float* const first = step_.buckets()[0].sum.get();
  step_.Reset({}, 1, false, false);
  SubmitAll(1);
  EXPECT_EQ(step_.buckets()[0].sum.get(), first);
  const std::shared_ptr<float[]> sent = step_.buckets()[0].sum;
  EXPECT_EQ(sent[0], 3);
  std::memset(slots_, 0, sizeof slots_);
  step_.Reset({}, 1, false, false);
  SubmitAll(1);
  EXPECT_EQ(sent[0], 3);
  EXPECT_EQ(step_.buckets()[0].sum[0], 0);
}

TEST_F(LocalStepTest, OfAReducedBucketTheFirstSlotIsTheSum) {
  step_.Reset({}, 1, false, true);
  wire::Submit submit = BucketOf(0, 1, 1);
  submit.reduced = 1;
  submit.squares = 2;
  Submit(1, submit);
  submit.squares = 3;
  submit.filled = 1;
  const uint32_t other_nan = 0xffc00001;
  std::memcpy(slots_[0] + 4, &other_nan, 4);
  Submit(0, submit);
  EXPECT_EQ(step_.buckets()[0].summed, 1u);
  EXPECT_EQ(step_.squares(), 0);
  submit.filled = kElements;
  Submit(0, submit);
  const float* const sum = step_.buckets()[0].sum.get();
  EXPECT_EQ(sum[0], 1);
  uint32_t nan = 0;
  std::memcpy(&nan, sum + 1, 4);
  EXPECT_EQ(nan, 0x7fc00000u);
  EXPECT_EQ(sum[2], 3);
  EXPECT_EQ(step_.squares(), 5);
}

TEST_F(LocalStepTest, SquaresOfPiecesCountOnceAllTrainersHaveFilledThem) {
  step_.Reset({}, 1, false, true);
  wire::Submit piece = BucketOf(0, 1, 1);
  piece.filled = 3;
  for (int trainer : {0, 1}) Submit(trainer, piece);
  EXPECT_EQ(step_.squares(), 5 * (1 + 4 + 9));
  SubmitAll(1);
  EXPECT_EQ(step_.squares(), all_);
}

TEST_F(LocalStepTest, WhatAllHaveFilledIsSummedAndNotReadAgain) {
  step_.Reset({}, 1, false, false);
  wire::Submit piece = BucketOf(0, 1, 1);
  piece.filled = 10;
  Submit(0, piece);
  EXPECT_EQ(step_.buckets()[0].sum, nullptr);
  piece.filled = 3;
  Submit(1, piece);
  EXPECT_EQ(step_.buckets()[0].summed, 3u);
  for (auto& slot : slots_) std::memset(slot, 0xff, 3 * 4);
  Submit(1, 0, 1, 1);
  EXPECT_EQ(step_.buckets()[0].summed, 10u);
  EXPECT_FALSE(step_.complete());
  Submit(0, 0, 1, 1);
  EXPECT_EQ(step_.buckets()[0].summed, kElements);
  for (uint32_t i = 0; i < kElements; ++i) {
    EXPECT_EQ(step_.buckets()[0].sum[i], 3 * (i + 1));
  }
}

// Threads that the driver lends, here one after the other and from the end.
TEST_F(LocalStepTest, PartsOfASumInAnyOrderGiveTheSameSumAndSquares) {
  step_.Reset({}, 1, false, true);
  SubmitAll(1);
  int parts = 0;
  LocalStep shared({{0, slots_[0]}, {1, slots_[1]}}, {1, 1}, 0,
                   [&](uint64_t elements, ElementPart part) {
                     for (uint64_t end = elements; end > 0; ++parts) {
                       const uint64_t count = std::min<uint64_t>(end, 5);
                       end -= count;
                       part(end, count);
                     }
                   });
  shared.Reset({}, 1, false, true);
  wire::Submit piece = BucketOf(0, 1, 1);
  piece.filled = 3;
  for (const wire::Submit& submit :
       {piece, BucketOf(0, 1, 1), BucketOf(1, 1, 1)}) {
    for (int trainer : {0, 1}) {
      ASSERT_OK_AND_ASSIGN(const auto problem, shared.Add(trainer, submit));
      EXPECT_FALSE(problem.has_value());
    }
  }
  EXPECT_EQ(parts, 1 + 3 + 4);
  EXPECT_EQ(shared.squares(), all_);
  for (int bucket : {0, 1}) {
    EXPECT_EQ(std::memcmp(shared.buckets()[bucket].sum.get(),
                          step_.buckets()[bucket].sum.get(), 4 * kElements),
              0);
  }
}

TEST_F(LocalStepTest, APieceThatTakesSomethingBackBreaksTheProtocol) {
  step_.Reset({}, 1, false, false);
  wire::Submit piece = BucketOf(0, 1, 1);
  piece.filled = 10;
  Submit(0, piece);
  piece.filled = 9;
  EXPECT_THAT(step_.Add(0, piece),
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             testing::HasSubstr("filled is 9, want from 10")));
}

// A trainer that writes on in its slot changes no sum: what the exchange sends,
// and sends again in a retry, was read once.
TEST_F(LocalStepTest, sec_shm_race) {
  step_.Reset({}, 1, false, false);
  SubmitAll(1);
  const std::shared_ptr<const float[]> sum = step_.buckets()[1].sum;
  std::vector<float> before(sum.get(), sum.get() + kElements);
  EXPECT_EQ(before[0], 3 * (kElements + 1));
  for (auto& slot : slots_) std::memset(slot, 0xff, sizeof slot);
  EXPECT_EQ(std::memcmp(before.data(), sum.get(), 4 * kElements), 0);
  EXPECT_EQ(step_.buckets()[1].sum, sum);
}

}  // namespace
}  // namespace pactrain::agent
