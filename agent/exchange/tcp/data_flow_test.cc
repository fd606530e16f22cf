#include "agent/exchange/tcp/data_flow.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"

namespace pactrain::agent {
namespace {

using ::testing::ElementsAre;

protocol::FrameHeader Header(uint32_t bucket, uint32_t chunk, uint16_t frame) {
  protocol::FrameHeader header;
  header.leg = protocol::Leg::kUp;
  header.bucket = bucket;
  header.chunk = chunk;
  header.frame = frame;
  return header;
}

std::vector<protocol::FrameHeader> Take(DataFlow& flow, size_t max_frames) {
  Batch batch(1 << 20, max_frames);
  flow.MoveTo(batch);
  std::vector<protocol::FrameHeader> headers;
  for (const OutFrame& frame : batch.frames) {
    headers.push_back(protocol::DecodeHeader(frame.header.data()).value());
  }
  return headers;
}

TEST(DataFlow, TheOldestChunkGoesFirstAndInItTheFirstPushed) {
  DataFlow flow;
  flow.Push(Header(1, 0, 1), {});
  flow.Push(Header(0, 2, 2), {});
  flow.Push(Header(0, 1, 9), {});
  flow.Push(Header(0, 1, 3), {});
  std::vector<int> frames;
  for (const auto& header : Take(flow, 3)) frames.push_back(header.frame);
  EXPECT_THAT(frames, ElementsAre(9, 3, 2));
  flow.Push(Header(0, 5, 5), {});
  frames.clear();
  for (const auto& header : Take(flow, 9)) frames.push_back(header.frame);
  EXPECT_THAT(frames, ElementsAre(5, 1));
  EXPECT_TRUE(Take(flow, 9).empty());
}

TEST(DataFlow, AFrameIsDueOnceTheControlBeforeItWasHeard) {
  DataFlow sender, receiver;
  // Beyond where the number starts anew.
  for (int i = 0; i < 70'000; ++i) {
    sender.OnControlSent();
    sender.Push(Header(0, 0, 0), {});
    const protocol::FrameHeader header = Take(sender, 1)[0];
    ASSERT_FALSE(receiver.IsDue(header)) << i;
    receiver.OnControlHeard();
    ASSERT_TRUE(receiver.IsDue(header)) << i;
  }
  const protocol::FrameHeader old = [&] {
    sender.Push(Header(0, 0, 0), {});
    return Take(sender, 1)[0];
  }();
  for (int i = 0; i < 1000; ++i) receiver.OnControlHeard();
  EXPECT_TRUE(receiver.IsDue(old)) << "control may overtake it";
}

}  // namespace
}  // namespace pactrain::agent
