// The C ABI against a fake agent on a real socket with real shared memory:
// steps.
#include "trainer/pactrain.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bf16.h"
#include "kernels/levels.h"
#include "trainer/test_session.h"

namespace pactrain::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::Code;
using PactrainTest = TestSession;

TEST_F(PactrainTest, ACommittedStepGivesTheMean) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    ASSERT_EQ(submits.size(), 2u);
    EXPECT_EQ(a.slot(submits[1].offset)[1], 5.0f);
    a.Answer(submits, 6.0f);
    a.SendCommitted(submits.back(), Compacted());
  });
  Attach(agent);
  const std::vector<float> first = {1, 2, 3}, second = {4, 5};
  ASSERT_EQ(Submit(0, first, false), PT_OK);
  ASSERT_EQ(Submit(1, second, true), PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
  EXPECT_THAT(results_[0], ElementsAre(1.5f, 3.0f, 4.5f));
  EXPECT_THAT(results_[1], ElementsAre(6.0f, 7.5f));
  EXPECT_EQ(step_.step, 7u);
  EXPECT_EQ(step_.attempts, 1u);
  EXPECT_EQ(step_.mode, PT_FULL);
  EXPECT_EQ(step_.elements, 5u);
  EXPECT_EQ(step_.sent_bytes, 11u);
  EXPECT_EQ(step_.received_bytes, 12u);
  EXPECT_EQ(step_.dense_bytes, 13u);
  EXPECT_EQ(step_.link_rate, 1.5);
  EXPECT_GE(step_.wait_seconds, 0.0);
  EXPECT_EQ(step_.next.version, 2u);
  EXPECT_STREQ(step_.next.reason, "masks are stable");
  pt_decision now = {};
  pt_current_decision(session_, &now);
  EXPECT_EQ(now.mode, PT_COMPACTED);
}

TEST_F(PactrainTest, ALargeBucketIsToldPieceByPiece) {
  static constexpr uint64_t kElements = 300'000;
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    ASSERT_EQ(submits.size(), 3u);
    uint64_t filled = 0;
    for (const wire::Submit& submit : submits) {
      EXPECT_GT(submit.filled, filled);
      EXPECT_EQ(submit.elements, kElements);
      EXPECT_EQ(submit.bucket, 0u);
      filled = submit.filled;
    }
    a.Answer({submits.back()}, 4.0f);
    a.SendCommitted(submits.back(), Compacted());
  });
  Attach(agent, 1, kElements);
  std::vector<float> data(kElements);
  std::iota(data.begin(), data.end(), 0.0f);
  ASSERT_EQ(Submit(0, data, true), PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
  EXPECT_EQ(results_[0], data);
}

TEST_F(PactrainTest, CompactedStepCarriesOnlyKeptElements) {
  FakeAgent agent([](FakeAgent& a) {
    AttachCompacted(a);
    const auto submits = a.ReceiveStep();
    EXPECT_EQ(submits[0].mode, PT_COMPACTED);
    EXPECT_EQ(submits[0].elements, 2u);
    EXPECT_EQ(a.slot(submits[0].offset)[0], 1.0f);
    EXPECT_EQ(a.slot(submits[0].offset)[1], 4.0f);
    a.Answer(submits, 4.0f);
    a.SendCommitted(submits.back(), Compacted());
  });
  Attach(agent);
  SetMasks();
  const std::vector<float> data = {1, 2, 3, 4};
  ASSERT_EQ(Submit(0, data, true), PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
  EXPECT_THAT(results_[0], ElementsAre(1.0f, 0.0f, 0.0f, 4.0f));
  EXPECT_EQ(step_.mode, PT_COMPACTED);
  EXPECT_EQ(step_.submitted_elements, 2u);
}

TEST_F(PactrainTest, Bf16BucketTravelsAsFp32) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    EXPECT_EQ(submits[0].dtype, PT_BFLOAT16);
    EXPECT_EQ(a.slot(submits[0].offset)[0], 1.5f);
    a.Answer(submits, 4.0f);
    a.SendCommitted(submits.back(), Full());
  });
  Attach(agent);
  const float values[] = {1.5f, -2.0f, 0.25f};
  uint16_t data[3], out[3] = {};
  kernels::ToBf16(values, 3, data);
  const pt_part part = {data, 3};
  ASSERT_EQ(pt_submit(session_, 0, &part, 1, out, PT_BFLOAT16, PT_SUM,
                      kBucketLayout, 1, nullptr),
            PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK);
  EXPECT_THAT(out, ElementsAre(data[0], data[1], data[2]));
}

TEST_F(PactrainTest, XorGivesTheBits) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    EXPECT_EQ(submits[0].op, PT_XOR);
    std::memcpy(a.result(submits[0].offset), a.slot(submits[0].offset), 8);
    a.SendCommitted(submits.back(), Full());
  });
  Attach(agent);
  const uint32_t words[] = {0x7f800001, 0xdeadbeef};
  uint32_t out[2] = {};
  const pt_part part = {words, 2};
  ASSERT_EQ(pt_submit(session_, 0, &part, 1, out, PT_FLOAT32, PT_XOR,
                      kBucketLayout, 1, nullptr),
            PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK);
  EXPECT_THAT(out, ElementsAre(0x7f800001u, 0xdeadbeefu));
}

TEST_F(PactrainTest, ResubmitIsAnsweredDenseFromTheHeldBuckets) {
  FakeAgent agent([](FakeAgent& a) {
    AttachCompacted(a);
    EXPECT_EQ(a.ReceiveStep()[0].elements, 2u);
    a.SendResubmit(7, 2);
    const auto submits = a.ReceiveStep();
    ASSERT_EQ(submits.size(), 2u);
    EXPECT_EQ(submits[0].attempt, 2u);
    EXPECT_EQ(submits[0].dense, 1);
    EXPECT_EQ(submits[0].elements, 4u);
    EXPECT_EQ(a.slot(submits[0].offset)[1], 2.0f);
    a.Answer(submits, 4.0f);
    a.SendCommitted(submits.back(), Compacted());
  });
  Attach(agent);
  SetMasks();
  const std::vector<float> first = {1, 2, 3, 4}, second = {5, 6, 7, 8};
  ASSERT_EQ(Submit(0, first, false), PT_OK);
  ASSERT_EQ(Submit(1, second, true), PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
  EXPECT_EQ(results_[0], first);
  EXPECT_EQ(results_[1], second);
  EXPECT_EQ(step_.dense, 1);
  EXPECT_EQ(step_.attempts, 2u);
}

TEST_F(PactrainTest, ResubmitReachesAStepThatIsNotYetComplete) {
  std::promise<void> resubmitted;
  FakeAgent agent([&](FakeAgent& a) {
    AttachCompacted(a);
    EXPECT_EQ(a.Receive<wire::Submit>().elements, 2u);
    a.SendResubmit(7, 2);
    EXPECT_EQ(a.Receive<wire::Submit>().elements, 4u);
    resubmitted.set_value();
    const wire::Submit second = a.Receive<wire::Submit>();
    EXPECT_EQ(second.bucket, 1u);
    EXPECT_EQ(second.elements, 4u);
    EXPECT_EQ(second.attempt, 2u);
    a.SendCommitted(second, Full());
  });
  Attach(agent);
  SetMasks();
  const std::vector<float> data = {1, 2, 3, 4};
  ASSERT_EQ(Submit(0, data, false), PT_OK);
  std::thread waiter([&] { EXPECT_EQ(pt_wait(session_, &step_), PT_OK); });
  resubmitted.get_future().wait();
  EXPECT_EQ(Submit(1, data, true), PT_OK);
  waiter.join();
  EXPECT_EQ(step_.dense, 1);
}

TEST_F(PactrainTest, ElementOutsideTheMaskIsToldToTheAgent) {
  FakeAgent agent([](FakeAgent& a) {
    AttachCompacted(a);
    const auto submits = a.ReceiveStep();
    EXPECT_EQ(submits[0].violation, 0);
    EXPECT_EQ(submits[1].violation, 1);
    EXPECT_THAT(submits[1].violation_text, HasSubstr("1 elements of bucket 1"));
    a.SendFailed(7, Code::kStepNotApplied, false, "refused");
  });
  Attach(agent, 0);
  SetMasks();
  const std::vector<float> clean = {1, 0, -0.0f, 4}, other = {1, 0, 9, 4};
  ASSERT_EQ(Submit(0, clean, false), PT_OK);
  ASSERT_EQ(Submit(1, other, true), PT_OK);
  EXPECT_EQ(pt_wait(session_, &step_), PT_STEP_NOT_APPLIED);
}

TEST_F(PactrainTest, WaitRunsBesideSubmits) {
  static constexpr uint32_t kBuckets = 300;
  static constexpr uint32_t kSteps = 5;
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    for (uint32_t step = 0; step < kSteps; ++step) {
      const auto submits = a.ReceiveStep();
      EXPECT_EQ(submits.size(), kBuckets);
      a.Answer(submits, 4.0f);
      a.SendCommitted(submits.back(), Full());
    }
  });
  Attach(agent);
  const std::vector<float> data(100, 3.0f);
  for (uint32_t step = 0; step < kSteps; ++step) {
    ASSERT_EQ(Submit(0, data, false), PT_OK);
    std::thread waiter([&] { EXPECT_EQ(pt_wait(session_, &step_), PT_OK); });
    for (uint32_t b = 1; b < kBuckets; ++b) {
      EXPECT_EQ(Submit(b, data, b + 1 == kBuckets), PT_OK);
    }
    waiter.join();
    EXPECT_EQ(step_.step, 7u + step);
    EXPECT_EQ(results_[kBuckets - 1], data);
  }
}

TEST_F(PactrainTest, SubmitNeverWaitsForAnAgentThatDoesNotRead) {
  std::promise<void> submitted;
  FakeAgent agent([&](FakeAgent& a) {
    a.Attach();
    submitted.get_future().wait();
    const auto submits = a.ReceiveStep();
    EXPECT_EQ(submits.size(), 2000u);
    a.Answer(submits, 4.0f);
    a.SendCommitted(submits.back(), Full());
  });
  Attach(agent);
  const std::vector<float> data = {1.0f};
  for (uint32_t b = 0; b < 2000; ++b) {
    ASSERT_EQ(Submit(b, data, b == 1999), PT_OK);
  }
  submitted.set_value();
  EXPECT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
}

TEST_F(PactrainTest, VoteAndRequiredDenseReachTheAgent) {
  FakeAgent agent([](FakeAgent& a) {
    AttachCompacted(a);
    const wire::Vote vote = a.Receive<wire::Vote>();
    EXPECT_EQ(vote.kept_elements, 50u);
    EXPECT_EQ(vote.settle_steps, 3u);
    EXPECT_STREQ(vote.moved, "fc.weight 12 elements moved");
    const auto submits = a.ReceiveStep();
    EXPECT_STREQ(submits[0].violation_text, "weights were loaded");
    a.SendFailed(7, Code::kStepNotApplied, false, "");
  });
  Attach(agent);
  SetMasks();
  EXPECT_EQ(pt_vote(session_, kLayout, kMask, 2, 3, 1, 50, 100,
                    "fc.weight 12 elements moved"),
            PT_OK);
  pt_require_dense(session_, "weights were loaded");
  const std::vector<float> data = {1, 2, 3, 4};
  EXPECT_EQ(Submit(0, data, true), PT_OK);
  EXPECT_EQ(pt_wait(session_, &step_), PT_STEP_NOT_APPLIED);
}

TEST_F(PactrainTest, WhatEachParameterKeepsReachesTheAgent) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const wire::Keep keep = a.Receive<wire::Keep>();
    EXPECT_EQ(keep.header.kind, wire::Kind::kKeep);
    ASSERT_EQ(keep.count, 1u);
    EXPECT_STREQ(keep.parameters[0].name, "fc.weight");
    EXPECT_EQ(keep.parameters[0].kept, 12u);
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  Attach(agent);
  const char* const name = "fc.weight";
  const uint64_t kept = 12, elements = 40, fewer = 11;
  EXPECT_EQ(pt_keep(session_, kMask, 1, &name, &kept, &elements), PT_OK);
  EXPECT_EQ(pt_keep(session_, kMask, 1, nullptr, &kept, &elements),
            PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("names"));
  EXPECT_EQ(pt_keep(session_, kMask, 1, &name, &kept, &fewer),
            PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("fc.weight keeps 12 of 11"));
  pt_close(session_);
  session_ = nullptr;
}

TEST_F(PactrainTest, MisuseIsRefusedInWords) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  Attach(agent);
  EXPECT_EQ(pt_wait(session_, &step_), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("no step is open"));
  float data = 1;
  const auto submit = [&](const pt_part* parts, uint32_t count, float* out,
                          int dtype) {
    return pt_submit(session_, 0, parts, count, out, dtype, PT_SUM,
                     kBucketLayout, 1, nullptr);
  };
  const pt_part good = {&data, 1}, null = {nullptr, 4};
  const pt_part huge = {&data, 1ull << 31};
  EXPECT_EQ(submit(nullptr, 1, &data, PT_FLOAT32), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("parts is null"));
  EXPECT_EQ(submit(&null, 1, &data, PT_FLOAT32), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("parts[0].data is null"));
  EXPECT_EQ(submit(&huge, 1, &data, PT_FLOAT32), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("elements is 2147483648"));
  EXPECT_EQ(submit(&good, 1, nullptr, PT_FLOAT32), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("out is null"));
  EXPECT_EQ(submit(&good, 1, &data, 257), PT_INVALID_ARGUMENT);
  const uint64_t too_many = 1ull << 40;
  const uint8_t bitmap = 0;
  const uint8_t* bitmaps[] = {&bitmap};
  EXPECT_EQ(
      pt_set_masks(session_, kMask, 0, 1, &kBucketLayout, &too_many, bitmaps),
      PT_INVALID_ARGUMENT);
  EXPECT_EQ(pt_set_masks(session_, kMask, 0, 5000, &kBucketLayout, &too_many,
                         bitmaps),
            PT_INVALID_ARGUMENT);
  const auto vote = [&](uint64_t kept, const std::string& moved) {
    return pt_vote(session_, kLayout, kMask, 1, 1, 1, kept, 100, moved.c_str());
  };
  EXPECT_EQ(vote(101, ""), PT_INVALID_ARGUMENT);
  EXPECT_EQ(vote(50, std::string(PT_MOVED_BYTES + 1, 'm')),
            PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_),
              HasSubstr("moved has 201 bytes; allowed are up to 200 bytes"));
  EXPECT_EQ(vote(50, "fc\n"), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("not all printable"));
  EXPECT_EQ(pt_wait(nullptr, &step_), PT_INVALID_ARGUMENT);
  EXPECT_EQ(pt_is_final(session_), 0);
  pt_close(session_);
  session_ = nullptr;
}

TEST(DigestTest, IsTheSameAsTheAgents) {
  for (const char* text : {"", "a", "some longer text of a mask set"}) {
    const base::Digest expected = base::DigestOf(text, std::strlen(text));
    const pt_digest digest = pt_digest_of(text, std::strlen(text));
    EXPECT_EQ(digest.hi, expected.hi);
    EXPECT_EQ(digest.lo, expected.lo);
  }
}

TEST(CodeLevels, AreTheKernelsAndRefuseWhatTheyDoNotTake) {
  std::vector<float> in(5000), decoded(5000), expected(5000);
  for (size_t i = 0; i < in.size(); ++i) in[i] = std::sin(0.1f * i);
  uint32_t bytes = 0;
  ASSERT_EQ(pt_code_levels(7, 99, 32, in.data(), 5000, decoded.data(), &bytes),
            PT_OK);
  std::vector<uint8_t> out(
      kernels::MaxLevelsBytes(kernels::Levels::k7, in.size()));
  size_t written = 0;
  kernels::EncodeLevels(kernels::Levels::k7, {99, 32},
                        kernels::LevelsForm::kShorter, in.data(), in.size(),
                        out.data(), &written, nullptr);
  ASSERT_TRUE(kernels::DecodeLevels(kernels::Levels::k7, {99, 32},
                                    {out.data(), written}, in.size(),
                                    expected.data()));
  EXPECT_EQ(bytes, written);
  EXPECT_EQ(decoded, expected);
  const auto refused = [&](uint32_t levels, uint32_t first, uint32_t elements) {
    return pt_code_levels(levels, 0, first, in.data(), elements, decoded.data(),
                          &bytes);
  };
  EXPECT_EQ(refused(4, 0, 16), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_last_error(), HasSubstr("none of 3, 5, 7, 15 and 31"));
  EXPECT_EQ(refused(7, 8, 16), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_last_error(), HasSubstr("no multiple of 16"));
  EXPECT_EQ(refused(7, 0, 65537), PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_last_error(), HasSubstr("above 65536"));
  EXPECT_EQ(pt_code_levels(7, 0, 0, nullptr, 16, decoded.data(), &bytes),
            PT_INVALID_ARGUMENT);
}

TEST(CudaStatus, IsOneLineThatIsCutToTheRoomForIt) {
  char text[256], little[5] = "xxxx";
  const int reason = pt_cuda_status(text, sizeof(text));
  ASSERT_GT(std::strlen(text), 4u);
  EXPECT_EQ(std::strchr(text, '\n'), nullptr);
  EXPECT_EQ(pt_cuda_status(little, sizeof(little)), reason);
  EXPECT_EQ(std::string(little), std::string(text).substr(0, 4));
  EXPECT_EQ(pt_cuda_status(nullptr, 0), reason);
}

}  // namespace
}  // namespace pactrain::trainer
