#include "agent/exchange/tcp/send_queue.h"

#include "base/status_matchers.h"

namespace pactrain::agent {
namespace {

OutFrame Data(uint16_t number, size_t bytes) {
  auto data = std::make_shared<std::vector<uint8_t>>(bytes);
  protocol::FrameHeader header;
  header.frame = number;
  header.leg = protocol::Leg::kUp;
  return OutFrame(header, {data, absl::MakeConstSpan(*data)});
}
OutFrame Control() { return OutFrame(protocol::Ping{.id = 1, .echo = false}); }

protocol::FrameHeader HeaderOf(const OutFrame& frame) {
  return protocol::DecodeHeader(frame.header.data()).value();
}

TEST(SendQueue, ControlGoesFirstAndDataKeepsItsOrder) {
  SendQueue queue(1 << 20);
  queue.PushData(Data(1, 10));
  queue.PushData(Data(2, 10));
  ASSERT_OK(queue.PushControl(Control()));
  const auto batch = queue.Take(1 << 20, 10);
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_EQ(HeaderOf(batch[0]).leg, protocol::Leg::kControl);
  EXPECT_EQ(HeaderOf(batch[1]).frame, 1);
  EXPECT_EQ(HeaderOf(batch[2]).frame, 2);
  EXPECT_TRUE(queue.empty());
}

TEST(SendQueue, TakeStopsAtBytesAndFramesButGivesAtLeastOne) {
  SendQueue queue(1 << 20);
  for (uint16_t i = 0; i < 5; ++i) queue.PushData(Data(i, 1000));
  EXPECT_EQ(queue.Take(1, 10).size(), 1u);
  EXPECT_EQ(queue.Take(1 << 20, 2).size(), 2u);
  EXPECT_EQ(queue.Take(1500, 10).size(), 2u);
  EXPECT_TRUE(queue.Take(1500, 10).empty());
}

TEST(SendQueue, ControlOverTheLimitIsRefusedUntilSomeIsTaken) {
  const size_t size = Control().size();
  SendQueue queue(2 * size);
  ASSERT_OK(queue.PushControl(Control()));
  ASSERT_OK(queue.PushControl(Control()));
  EXPECT_THAT(queue.PushControl(Control()),
              base::StatusIs(absl::StatusCode::kResourceExhausted,
                             ::testing::HasSubstr("unread")));
  queue.Take(1, 1);
  EXPECT_OK(queue.PushControl(Control()));
}

}  // namespace
}  // namespace pactrain::agent
