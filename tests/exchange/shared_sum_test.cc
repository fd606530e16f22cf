#include <cstdint>
#include <cstring>
#include <vector>

#include "agent/core/local_step.h"
#include "agent/core/wire_convert.h"
#include "base/crew.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

constexpr uint64_t kElements = 200'001;
constexpr int kTrainers = 3;
constexpr size_t kGrain = 1024;

using Slots = std::vector<std::vector<float>>;

// Each trainer submits one bucket in two pieces.
std::vector<float> SumOf(const Slots& slots, ShareOut share_out) {
  std::vector<LocalStep::Member> members;
  for (uint32_t rank = 0; rank < slots.size(); ++rank) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(slots[rank].data());
    members.push_back({rank, absl::MakeConstSpan(bytes, 4 * kElements)});
  }
  LocalStep step(members, {1, 1}, 0, std::move(share_out));
  step.Reset({}, 1, /*dense=*/false, /*measure=*/true);
  auto submit = MakeMessage<wire::Submit>(wire::Kind::kSubmit);
  submit.attempt = 1;
  submit.elements = kElements;
  submit.mode = submit.op = submit.dtype = submit.last = 1;
  for (uint64_t filled : {kElements / 3, kElements}) {
    submit.filled = filled;
    for (int trainer = 0; trainer < kTrainers; ++trainer) {
      const auto problem = step.Add(trainer, submit);
      EXPECT_OK(problem.status());
      EXPECT_FALSE(problem->has_value());
    }
  }
  const float* sum = step.buckets()[0].sum.get();
  return {sum, sum + kElements};
}

TEST(SharedSum, HasTheBitsOfOneThread) {
  Slots slots(kTrainers, std::vector<float>(kElements));
  for (int trainer = 0; trainer < kTrainers; ++trainer) {
    for (uint64_t i = 0; i < kElements; ++i) {
      slots[trainer][i] = 1.0f / static_cast<float>(3 * i + trainer + 1);
    }
  }
  const std::vector<float> alone = SumOf(slots, DoAlone);
  base::Crew crew(4);
  for (int round = 0; round < 10; ++round) {
    const std::vector<float> shared =
        SumOf(slots, [&](uint64_t elements, ElementPart part) {
          crew.Share(elements, kGrain, part);
        });
    ASSERT_EQ(std::memcmp(shared.data(), alone.data(), 4 * kElements), 0);
  }
}

}  // namespace
}  // namespace pactrain::agent
