// A session of the C ABI, for tests with a fake agent.
#ifndef PACTRAIN_TRAINER_TEST_SESSION_H_
#define PACTRAIN_TRAINER_TEST_SESSION_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/fake_agent.h"
#include "trainer/pactrain.h"

namespace pactrain::trainer {

inline constexpr pt_digest kBucketLayout = {1, 1};
inline constexpr pt_digest kMask = {2, 2};
inline constexpr pt_digest kLayout = {3, 3};

inline wire::Decision Full() {
  wire::Decision decision = {};
  decision.version = 1;
  decision.mode = PT_FULL;
  decision.codec = PT_CODEC_FP32;
  return decision;
}

inline wire::Decision Compacted() {
  wire::Decision decision = Full();
  decision.version = 2;
  decision.mode = PT_COMPACTED;
  decision.mask_digest = {kMask.hi, kMask.lo};
  decision.layout_digest = {kLayout.hi, kLayout.lo};
  std::strcpy(decision.reason, "masks are stable");
  return decision;
}

inline void AttachCompacted(FakeAgent& agent) {
  wire::Attached attached = FakeAgent::AttachedFor(agent.Accept());
  attached.decision = Compacted();
  agent.SendAttached(attached);
}

// A session with the fake agent that a test gives it.
class TestSession : public ::testing::Test {
 protected:
  ~TestSession() override { pt_close(session_); }

  void Attach(const FakeAgent& agent, int gse = 1,
              uint64_t elements = 100'000) {
    const std::string address = agent.address();
    pt_attach_options options = {};
    options.agent = address.c_str();
    options.job = "job";
    options.world_size = 4;
    options.elements = elements;
    options.attach_timeout_ms = 20000;
    options.gse = gse;
    ASSERT_EQ(pt_attach(&options, &session_, nullptr, nullptr), PT_OK)
        << pt_last_error();
  }

  int Submit(uint32_t bucket, const std::vector<float>& data, bool last) {
    const pt_part part = {data.data(), data.size()};
    results_.resize(std::max(results_.size(), bucket + size_t{1}));
    results_[bucket].assign(data.size(), -1.0f);
    return pt_submit(session_, bucket, &part, 1, results_[bucket].data(),
                     PT_FLOAT32, PT_SUM, kBucketLayout, last ? 1 : 0, nullptr);
  }

  // Two buckets of four elements; the first and the last of each are kept.
  void SetMasks() {
    const uint8_t bitmap = 0b1001;
    const uint8_t* bitmaps[] = {&bitmap, &bitmap};
    const pt_digest layouts[] = {kBucketLayout, kBucketLayout};
    const uint64_t elements[] = {4, 4};
    ASSERT_EQ(pt_set_masks(session_, kMask, 0, 2, layouts, elements, bitmaps),
              PT_OK)
        << pt_error_text(session_);
  }

  pt_session* session_ = nullptr;
  pt_step step_ = {};
  std::vector<std::vector<float>> results_;  // By bucket.
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_TEST_SESSION_H_
