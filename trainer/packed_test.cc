// Buckets that a device has packed, by the C ABI against a fake agent.
#include <cstdint>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/test_session.h"

namespace pactrain::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kElements = 4;  // Of both buckets; the first and last kept.

class PackedTest : public TestSession {
 protected:
  pt_plan Plan(uint32_t bucket = 0, pt_digest layout = kBucketLayout) {
    pt_plan plan = {};
    EXPECT_EQ(pt_plan_bucket(session_, bucket, kElements, layout, &plan), PT_OK)
        << pt_error_text(session_);
    return plan;
  }

  // What lies in `memory_` by `plan`.
  int SubmitPacked(uint32_t bucket, const pt_plan& plan, uint64_t outside,
                   bool last, int32_t path = PT_PATH_HOST) {
    const pt_packed packed = {.outside = outside, .squares = 30, .path = path};
    return pt_submit_packed(session_, bucket, kElements, &plan, &packed,
                            memory_[bucket].data(), PT_FLOAT32, kBucketLayout,
                            last ? 1 : 0, nullptr, &PackedTest::Fill, this);
  }

  // Of a bucket without a mask.
  static pt_plan Whole() {
    pt_plan plan = {};
    plan.packed = 1;
    plan.kept = kElements;
    return plan;
  }

  // The kept ones of {1, 2, 3, 4} and {5, 6, 7, 8}.
  int SubmitBoth() {
    memory_ = {{1, 4, 0, 0}, {5, 8, 0, 0}};
    const int code = SubmitPacked(0, Plan(0), 0, false);
    return code == PT_OK ? SubmitPacked(1, Plan(1), 0, true) : code;
  }

  std::vector<std::vector<float>> memory_;
  std::vector<uint32_t> filled_;
  bool can_fill_ = true;

 private:
  static int Fill(uint32_t bucket, void* arg) {
    auto* test = static_cast<PackedTest*>(arg);
    test->filled_.push_back(bucket);
    const float first = bucket == 0 ? 1 : 5;
    test->memory_[bucket] = {first, first + 1, first + 2, first + 3};
    return test->can_fill_ ? 0 : 1;
  }
};

TEST_F(PackedTest, ThePlanSaysWhatTravels) {
  FakeAgent agent([](FakeAgent& a) { AttachCompacted(a); });
  Attach(agent);
  pt_plan plan = Plan();
  EXPECT_EQ(plan.packed, 0);  // Its mask has not been given.
  EXPECT_EQ(plan.kept, kElements);
  SetMasks();
  plan = Plan();
  EXPECT_EQ(plan.packed, 1);
  EXPECT_EQ(plan.kept, 2u);
  EXPECT_EQ(plan.count_outside, 0);
  EXPECT_EQ(plan.mask_digest.hi, kMask.hi);
  EXPECT_EQ(Plan(0, kLayout).packed, 0);  // Of another layout.
}

TEST_F(PackedTest, TheImageIsThatOfTheMask) {
  FakeAgent agent([](FakeAgent& a) { AttachCompacted(a); });
  Attach(agent);
  SetMasks();
  pt_plan plan = Plan();
  std::vector<uint32_t> image(plan.image_bytes / 4, ~0u);
  ASSERT_EQ(
      pt_mask_image(session_, 0, kElements, kBucketLayout, &plan, image.data()),
      PT_OK);
  EXPECT_EQ(image.front(), 0b1001u);
  EXPECT_EQ(image.back(), 0u);  // Kept before the only tile.
  ++plan.kept;
  EXPECT_EQ(
      pt_mask_image(session_, 0, kElements, kBucketLayout, &plan, image.data()),
      PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("another plan now"));
}

TEST_F(PackedTest, WhatIsPackedIsSentAsItIsAndComesBackAsSums) {
  FakeAgent agent([](FakeAgent& a) {
    AttachCompacted(a);
    const auto submits = a.ReceiveStep();
    ASSERT_EQ(submits.size(), 2u);
    EXPECT_EQ(submits[1].elements, 2u);
    EXPECT_EQ(submits[1].mode, PT_COMPACTED);
    EXPECT_EQ(submits[1].violation, 0);
    EXPECT_EQ(a.slot(submits[1].offset)[1], 8.0f);
    a.Answer(submits, 4.0f);
    a.SendCommitted(submits.back(), Compacted());
  });
  Attach(agent);
  SetMasks();
  ASSERT_EQ(SubmitBoth(), PT_OK) << pt_error_text(session_);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
  EXPECT_EQ(step_.dense, 0);
  EXPECT_EQ(step_.submitted_elements, 4u);
  EXPECT_THAT(memory_[0], ElementsAre(4, 16, 0, 0));
  EXPECT_THAT(memory_[1], ElementsAre(20, 32, 0, 0));
  EXPECT_TRUE(filled_.empty());
}

TEST_F(PackedTest, ElementsOutsideTheMaskAreToldToTheAgent) {
  FakeAgent agent([](FakeAgent& a) {
    AttachCompacted(a);
    const auto submits = a.ReceiveStep();
    ASSERT_EQ(submits.size(), 1u);
    EXPECT_EQ(submits[0].violation, 1);
    EXPECT_THAT(submits[0].violation_text,
                HasSubstr("3 elements of bucket 0 outside the mask"));
  });
  Attach(agent, /*gse=*/0);
  SetMasks();
  memory_ = {{1, 4, 0, 0}};
  const pt_plan plan = Plan();
  EXPECT_EQ(plan.count_outside, 1);
  EXPECT_EQ(SubmitPacked(0, plan, 3, true), PT_OK);
}

TEST_F(PackedTest, ADenseAttemptHasAllElementsFromTheDevice) {
  FakeAgent agent([](FakeAgent& a) {
    AttachCompacted(a);
    const auto packed = a.ReceiveStep();
    a.Answer(packed, 3.0f);
    a.SendWritten(packed.back(), 0);  // Of an attempt that comes to nothing.
    a.SendResubmit(7, 2);
    const auto submits = a.ReceiveStep();
    ASSERT_EQ(submits.size(), 2u);
    EXPECT_EQ(submits[1].dense, 1);
    EXPECT_EQ(submits[1].elements, kElements);
    EXPECT_EQ(a.slot(submits[1].offset)[2], 7.0f);
    a.Answer(submits, 4.0f);
    a.SendCommitted(submits.back(), Compacted());
  });
  Attach(agent);
  SetMasks();
  ASSERT_EQ(SubmitBoth(), PT_OK) << pt_error_text(session_);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
  EXPECT_EQ(step_.dense, 1);
  EXPECT_THAT(filled_, ElementsAre(0, 1));
  EXPECT_THAT(memory_[0], ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(memory_[1], ElementsAre(5, 6, 7, 8));
}

TEST_F(PackedTest, AStepThatBecameDenseAfterThePlanIsFilledByTheSubmit) {
  std::promise<void> resubmitted;
  FakeAgent agent([&](FakeAgent& a) {
    AttachCompacted(a);
    EXPECT_EQ(a.Receive<wire::Submit>().elements, 2u);
    a.SendResubmit(7, 2);  // Another rank's violation.
    EXPECT_EQ(a.Receive<wire::Submit>().elements, kElements);
    resubmitted.set_value();
    const wire::Submit second = a.Receive<wire::Submit>();
    EXPECT_EQ(second.elements, kElements);
    EXPECT_EQ(second.dense, 1);
    EXPECT_EQ(a.slot(second.offset)[1], 6.0f);
    a.Answer({second}, 4.0f);
    a.SendCommitted(second, Compacted());
  });
  Attach(agent);
  SetMasks();
  memory_ = {{1, 4, 0, 0}, {5, 8, 0, 0}};
  const pt_plan plan = Plan(1);
  ASSERT_EQ(SubmitPacked(0, Plan(0), 0, false), PT_OK);
  std::thread waiter([&] { EXPECT_EQ(pt_wait(session_, &step_), PT_OK); });
  resubmitted.get_future().wait();
  EXPECT_EQ(Plan(1).packed, 0);
  EXPECT_EQ(SubmitPacked(1, plan, 0, true), PT_OK) << pt_error_text(session_);
  waiter.join();
  EXPECT_EQ(step_.dense, 1);
  EXPECT_THAT(memory_[1], ElementsAre(5, 6, 7, 8));
}

TEST_F(PackedTest, ADeviceThatGivesNothingEndsTheSession) {
  FakeAgent agent([](FakeAgent& a) {
    AttachCompacted(a);
    a.ReceiveStep();
    a.SendResubmit(7, 2);
  });
  Attach(agent);
  SetMasks();
  can_fill_ = false;
  ASSERT_EQ(SubmitBoth(), PT_OK);
  EXPECT_EQ(pt_wait(session_, &step_), PT_INTERNAL);
  EXPECT_THAT(pt_error_text(session_),
              HasSubstr("bucket 0 has to be sent whole"));
  EXPECT_THAT(filled_, ElementsAre(0));
  EXPECT_EQ(pt_is_final(session_), 1);
}

TEST_F(PackedTest, AWholeBucketIsSentAsItIsAndComesBackAsSums) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    ASSERT_EQ(submits.size(), 2u);
    EXPECT_EQ(submits[0].mode, PT_FULL);
    EXPECT_EQ(submits[0].dense, 0);
    EXPECT_EQ(submits[0].elements, kElements);
    EXPECT_EQ(submits[0].reduced, 1);
    EXPECT_EQ(submits[0].squares, 30);
    EXPECT_EQ(a.slot(submits[0].offset)[2], 3.0f);
    EXPECT_EQ(submits[1].reduced, 1);
    EXPECT_EQ(a.slot(submits[1].offset)[2], 0.0f) << "a follower has no data";
    a.Answer({submits[0]}, 4.0f);
    a.SendCommitted(submits.back(), Full());
  });
  Attach(agent);
  memory_ = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  ASSERT_EQ(SubmitPacked(0, Whole(), 0, false, PT_PATH_LEADER), PT_OK);
  ASSERT_EQ(SubmitPacked(1, Whole(), 0, true, PT_PATH_FOLLOWER), PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
  EXPECT_EQ(step_.dense, 0);
  EXPECT_EQ(step_.mode, PT_FULL);
  EXPECT_THAT(memory_[0], ElementsAre(4, 8, 12, 16));
  EXPECT_TRUE(filled_.empty());
}

TEST_F(PackedTest, ADenseAttemptHasAWholeBucketFromTheDeviceAgain) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    EXPECT_EQ(a.ReceiveStep()[0].reduced, 1);
    a.SendResubmit(7, 2);
    const auto submits = a.ReceiveStep();
    EXPECT_EQ(submits[0].dense, 1);
    EXPECT_EQ(submits[0].reduced, 0);
    EXPECT_EQ(a.slot(submits[0].offset)[2], 3.0f);
    a.Answer(submits, 4.0f);
    a.SendCommitted(submits.back(), Full());
  });
  Attach(agent);
  memory_ = {{10, 20, 30, 40}};  // The node's sum.
  ASSERT_EQ(SubmitPacked(0, Whole(), 0, true, PT_PATH_LEADER), PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
  EXPECT_EQ(step_.dense, 1);
  EXPECT_THAT(filled_, ElementsAre(0));
  EXPECT_THAT(memory_[0], ElementsAre(1, 2, 3, 4));
}

TEST_F(PackedTest, AWholeBucketIsRefusedWhereAMaskIsInForceAndTheOtherWay) {
  FakeAgent agent([](FakeAgent& a) { AttachCompacted(a); });
  Attach(agent);
  SetMasks();
  memory_ = {{1, 2, 3, 4}};
  EXPECT_EQ(SubmitPacked(0, Whole(), 0, true), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("its plan has 2"));
  pt_plan image = Whole();
  EXPECT_EQ(pt_mask_image(session_, 0, kElements, kBucketLayout, &image,
                          memory_[0].data()),
            PT_INVALID_ARGUMENT);
  const pt_plan masked = Plan();
  pt_close(session_);
  session_ = nullptr;
  FakeAgent full([](FakeAgent& a) { a.Attach(); });
  Attach(full);
  EXPECT_EQ(SubmitPacked(0, masked, 0, true), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("its plan has 4"));
  EXPECT_EQ(pt_mask_image(session_, 0, kElements, kBucketLayout, &image,
                          memory_[0].data()),
            PT_INVALID_ARGUMENT);
}

TEST_F(PackedTest, TheDevicePathReachesTheAgentAndOddOnesAreRefused) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto path = a.Receive<wire::DevicePath>();
    EXPECT_EQ(path.header.kind, wire::Kind::kDevicePath);
    EXPECT_EQ(path.path, PT_DEVICE_PACKED);
    EXPECT_STREQ(path.reason, "asked for");
  });
  Attach(agent);
  EXPECT_EQ(pt_device_path(session_, 4, "x"), PT_INVALID_ARGUMENT);
  EXPECT_EQ(pt_device_path(session_, 1, "a\nb"), PT_INVALID_ARGUMENT);
  EXPECT_EQ(pt_device_path(session_, 1, std::string(201, 'x').c_str()),
            PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("reason has 201 bytes"));
  EXPECT_EQ(pt_device_path(session_, PT_DEVICE_PACKED, "asked for"), PT_OK);
}

TEST_F(PackedTest, WhatFollowsAnotherPlanIsRefused) {
  FakeAgent agent([](FakeAgent& a) { AttachCompacted(a); });
  Attach(agent);
  SetMasks();
  memory_ = {{1, 4, 0, 0}};
  pt_plan plan = Plan();
  ++plan.mask_digest.lo;
  EXPECT_EQ(SubmitPacked(0, plan, 0, true), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("its plan has 2"));
  plan = Plan();
  plan.kept = 3;
  EXPECT_EQ(SubmitPacked(0, plan, 0, true), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("is packed to 3 elements"));
}

TEST_F(PackedTest, WhatIsNullIsRefused) {
  FakeAgent agent([](FakeAgent& a) { AttachCompacted(a); });
  Attach(agent);
  const pt_plan plan = Plan();
  EXPECT_EQ(
      pt_submit_packed(session_, 0, kElements, &plan, nullptr, nullptr,
                       PT_FLOAT32, kBucketLayout, 1, nullptr, nullptr, nullptr),
      PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("memory or fill is null"));
}

TEST(Cuda, WithoutADriverOrAContextTheKernelsAreRefusedInWords) {
  // With one there is no context: nobody has made any.
  pt_cuda* cuda = nullptr;
  EXPECT_EQ(pt_cuda_open(&cuda), PT_REFUSED);
  EXPECT_EQ(cuda, nullptr);
  EXPECT_NE(std::strlen(pt_last_error()), 0u);
  EXPECT_EQ(pt_cuda_totals_bytes(8193), 2 * pt_cuda_totals_bytes(1));
  EXPECT_EQ(pt_cuda_compact(nullptr, 0, 1, 9, 0, 0, 0, 0, nullptr),
            PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_last_error(), HasSubstr("dtype is 9"));
}

}  // namespace
}  // namespace pactrain::trainer
