#include "agent/exchange/tcp/send_queue.h"

#include "base/status_matchers.h"

namespace pactrain::agent {
namespace {

OutFrame Control() { return OutFrame(protocol::Ping{.id = 1, .echo = false}); }

size_t Take(ControlQueue& queue, size_t max_bytes, size_t max_frames) {
  Batch batch(max_bytes, max_frames);
  queue.MoveTo(batch);
  return batch.frames.size();
}

TEST(ControlQueue, ABatchStopsAtBytesAndFramesButHasAtLeastOne) {
  ControlQueue queue(1 << 20);
  for (int i = 0; i < 5; ++i) ASSERT_OK(queue.Push(Control()));
  EXPECT_EQ(Take(queue, 1, 10), 1u);
  EXPECT_EQ(Take(queue, 1 << 20, 2), 2u);
  EXPECT_EQ(Take(queue, Control().size() + 1, 10), 2u);
  EXPECT_EQ(Take(queue, 1500, 10), 0u);
}

TEST(ControlQueue, OverTheLimitItIsRefusedUntilSomeIsTaken) {
  ControlQueue queue(2 * Control().size());
  ASSERT_OK(queue.Push(Control()));
  ASSERT_OK(queue.Push(Control()));
  EXPECT_THAT(queue.Push(Control()),
              base::StatusIs(absl::StatusCode::kResourceExhausted,
                             ::testing::HasSubstr("unread")));
  EXPECT_EQ(Take(queue, 1, 1), 1u);
  EXPECT_OK(queue.Push(Control()));
}

}  // namespace
}  // namespace pactrain::agent
