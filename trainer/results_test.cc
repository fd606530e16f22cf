// Results that come before the commit, by the C ABI against a fake agent.
#include <cstdint>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/test_session.h"

namespace pactrain::trainer {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using wire::Code;

constexpr uint64_t kElements = 10'000;  // More than two tiles.
constexpr uint64_t kTiles2 = 8192;      // Two of them.
constexpr uint64_t kStep = 7;           // The fake agent's first.

class ResultsTest : public TestSession {
 protected:
  // Two buckets, the second of them in two parts, one of which may be in `out`.
  int Step(bool in_place) {
    const pt_part whole = {first_.data(), kElements};
    Submit(0, {whole}, first_mean_);
    const std::vector<float>& rest = in_place ? second_mean_ : second_;
    Submit(1, {{second_.data(), 5000}, {rest.data() + 5000, kElements - 5000}},
           second_mean_);
    return pt_wait(session_, &step_);
  }

  std::vector<float> first_ = Numbers(0), second_ = Numbers(1);
  std::vector<float> first_mean_ = std::vector<float>(kElements, -1);
  std::vector<float> second_mean_ = std::vector<float>(kElements, -1);

 private:
  static std::vector<float> Numbers(float first) {
    std::vector<float> numbers(kElements);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }

  void Submit(uint32_t bucket, const std::vector<pt_part>& parts,
              std::vector<float>& out) {
    ASSERT_EQ(
        pt_submit(session_, bucket, parts.data(),
                  static_cast<uint32_t>(parts.size()), out.data(), PT_FLOAT32,
                  PT_SUM, kBucketLayout, bucket == 1, nullptr),
        PT_OK)
        << pt_error_text(session_);
  }
};

TEST_F(ResultsTest, AreReadAsTheyComeAndCompleteAtTheCommit) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    a.Answer(submits, 4.0f);
    a.SendWritten(submits[0], 100);  // Less than a tile.
    a.SendWritten(submits[0], kElements);
    a.SendWritten(submits[1], 5000);
    wire::Submit behind = submits[1];
    ++behind.bucket;
    a.SendWritten(behind, 0);
    a.SendCommitted(submits.back(), Full());
  });
  Attach(agent);
  ASSERT_EQ(Step(false), PT_OK) << pt_error_text(session_);
  EXPECT_EQ(first_mean_, first_);
  EXPECT_EQ(second_mean_, second_);
}

// What a failed step leaves shows what was read before its end.
TEST_F(ResultsTest, OfWholeTilesAreReadBeforeTheCommitButNotOverTheParts) {
  for (const bool in_place : {false, true}) {
    FakeAgent agent([](FakeAgent& a) {
      a.Attach();
      const auto submits = a.ReceiveStep();
      a.Answer(submits, 4.0f);
      a.SendWritten(submits[1], 9000);
      a.SendFailed(kStep, Code::kStepNotApplied, false, "refused");
      EXPECT_TRUE(a.Receive<wire::Detach>().header.kind == wire::Kind::kDetach);
    });
    Attach(agent);
    second_mean_.assign(kElements, -1);
    EXPECT_EQ(Step(in_place), PT_STEP_NOT_APPLIED);
    EXPECT_EQ(first_mean_, first_);
    if (in_place) {
      EXPECT_THAT(second_mean_, Each(-1.0f));
    } else {
      EXPECT_EQ(second_mean_[kTiles2 - 1], second_[kTiles2 - 1]);
      EXPECT_EQ(second_mean_[kTiles2], -1.0f);
    }
    pt_close(std::exchange(session_, nullptr));
  }
}

TEST_F(ResultsTest, OfAnotherAttemptAreReadFromTheStart) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    auto submits = a.ReceiveStep();
    a.Answer(submits, 8.0f);
    a.SendWritten(submits[1], kElements);
    a.SendResubmit(kStep, 2);
    submits = a.ReceiveStep();
    a.Answer(submits, 4.0f);
    a.SendWritten(submits[0], 5000);
    // An attempt that the agents began again without asking the trainers.
    a.Answer(submits, 12.0f);
    submits.back().attempt = 3;
    a.SendCommitted(submits.back(), Full());
  });
  Attach(agent);
  ASSERT_EQ(Step(false), PT_OK) << pt_error_text(session_);
  for (uint64_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(first_mean_[i], 3 * first_[i]);
    ASSERT_EQ(second_mean_[i], 3 * second_[i]);
  }
  EXPECT_EQ(step_.attempts, 3u);
}

TEST_F(ResultsTest, OfWhatWasNotSubmittedEndTheSession) {
  for (const bool past : {false, true}) {
    FakeAgent agent([past](FakeAgent& a) {
      a.Attach();
      wire::Submit behind = a.ReceiveStep()[1];
      behind.bucket += past ? 1 : 0;
      a.SendWritten(behind, past ? 1 : kElements + 1);
      EXPECT_TRUE(a.AtEnd());
    });
    Attach(agent);
    EXPECT_EQ(Step(false), PT_INTERNAL);
    EXPECT_THAT(pt_error_text(session_), HasSubstr("Written names step 7"));
    pt_close(std::exchange(session_, nullptr));
  }
}

}  // namespace
// Of the result: only that is mapped to be read alone.
uint64_t ResidentKib() {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  uint64_t kib = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" r--s ") != std::string::npos) {
      inside = line.find("/memfd:pactrain-test") != std::string::npos;
    } else if (inside && line.rfind("Rss:", 0) == 0) {
      kib += std::stoull(line.substr(4));
      inside = false;
    }
  }
  return kib;
}

using MemoryTest = TestSession;

TEST_F(MemoryTest, OfFullStepsIsGivenBackBeforeMasksAct) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    for (const wire::Decision& next : {Full(), Compacted()}) {
      const auto submits = a.ReceiveStep();
      a.Answer(submits, 4);
      a.SendCommitted(submits.back(), next);
    }
  });
  Attach(agent);
  const std::vector<float> data(100'000, 1.0f);
  ASSERT_EQ(Submit(0, data, true), PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK);
  EXPECT_GE(ResidentKib(), 390u);
  ASSERT_EQ(Submit(0, data, true), PT_OK);
  ASSERT_EQ(pt_wait(session_, &step_), PT_OK);
  EXPECT_EQ(ResidentKib(), 0u);
  EXPECT_EQ(results_[0], data);
}

}  // namespace pactrain::trainer
