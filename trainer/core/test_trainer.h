// A trainer's state with the messages of its agent, for tests.
#ifndef PACTRAIN_TRAINER_CORE_TEST_TRAINER_H_
#define PACTRAIN_TRAINER_CORE_TEST_TRAINER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/core/text.h"
#include "trainer/core/trainer_state.h"

namespace pactrain::trainer {

inline constexpr wire::Digest128 kLayout = {1, 2};
inline constexpr wire::Digest128 kMask = {3, 4};
inline constexpr uint64_t kBaseStep = 10;

inline TrainerOptions Options() {
  TrainerOptions options;
  options.agent = "unix:/run/agent.sock";
  SetText(options.hello.job, "job");
  options.hello.world_size = 4;
  options.hello.elements = 1000;
  options.attach_timeout = std::chrono::seconds(30);
  return options;
}

inline wire::Decision FullDecision() {
  wire::Decision decision = {};
  decision.version = 1;
  decision.mode = 1;
  decision.codec = 1;
  return decision;
}

inline wire::Decision CompactedDecision() {
  wire::Decision decision = FullDecision();
  decision.version = 2;
  decision.mode = 2;
  decision.mask_digest = kMask;
  decision.layout_digest = kLayout;
  return decision;
}

inline wire::Digest128 BucketLayout(uint32_t index) { return {100, index}; }

inline Bucket MakeBucket(uint32_t index, uint64_t elements, bool last) {
  Bucket bucket;
  bucket.index = index;
  bucket.elements = elements;
  bucket.layout = BucketLayout(index);
  bucket.last = last;
  return bucket;
}

// Two buckets of 100 elements; every fourth element is kept.
inline MaskSet Masks() {
  MaskSet set;
  set.mask_digest = kMask;
  const std::vector<uint8_t> bitmap(13, 0x11);
  for (uint32_t b = 0; b < 2; ++b) {
    set.buckets.push_back(
        {BucketLayout(b),
         std::make_shared<const kernels::MaskPlan>(bitmap.data(), 100)});
  }
  return set;
}

// A trainer that talks with an agent of the test.
class TestTrainer : public ::testing::Test {
 protected:
  explicit TestTrainer(TrainerOptions options = Options())
      : state_(options, now_) {}

  template <typename Message>
  Event Say(const Message& message) {
    return state_.OnMessage(now_, &message, sizeof(message));
  }

  wire::Attached Attached(const wire::Decision& decision) const {
    wire::Attached message = {};
    message.header = {wire::Kind::kAttached, sizeof(message)};
    message.world_size = 4;
    message.donor = wire::kNoRank;
    message.base_step = kBaseStep;
    message.slot_bytes = state_.wanted_slot_bytes();
    message.result_bytes = message.slot_bytes;
    message.step_deadline_ms = 60000;
    message.decision = decision;
    return message;
  }

  void Attach(const wire::Decision& decision = FullDecision()) {
    ASSERT_EQ(Say(Attached(decision)), Event::kAttached);
  }

  // Places and submits; the message that goes to the agent.
  wire::Submit Submit(const Bucket& bucket, uint64_t outside = 0) {
    Placement placement;
    const Error error = state_.Place(now_, bucket, &placement);
    EXPECT_TRUE(error.ok()) << error.text;
    return state_.Submit(now_, placement, placement.elements, outside);
  }

  Error TryPlace(const Bucket& bucket) {
    Placement placement;
    return state_.Place(now_, bucket, &placement);
  }

  wire::Committed Committed(uint64_t step, uint32_t attempt = 1) {
    wire::Committed message = {};
    message.header = {wire::Kind::kCommitted, sizeof(message)};
    message.step = step;
    message.attempt = attempt;
    message.world_size = 4;
    message.next = FullDecision();
    return message;
  }

  wire::Resubmit Resubmit(uint64_t step, uint32_t attempt) {
    wire::Resubmit message = {};
    message.header = {wire::Kind::kResubmit, sizeof(message)};
    message.step = step;
    message.attempt = attempt;
    return message;
  }

  wire::Failed Failed(uint64_t step, wire::Code code, bool final) {
    wire::Failed message = {};
    message.header = {wire::Kind::kFailed, sizeof(message)};
    message.step = step;
    message.code = code;
    message.final = final ? 1 : 0;
    SetText(message.text, "site a has x, site b has y.\nUse one model.");
    return message;
  }

  void SubmitTwo() {
    Submit(MakeBucket(0, 100, false));
    Submit(MakeBucket(1, 100, true));
  }

  // Of report_.
  Mode mode() const { return static_cast<Mode>(report_.mode); }
  Codec codec() const { return static_cast<Codec>(report_.codec); }

  Time now_ = std::chrono::seconds(1000);
  TrainerState state_;
  pt_step report_ = {};
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_TEST_TRAINER_H_
