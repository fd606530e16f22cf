#include "agent/exchange/tcp/frame_decoder.h"

#include <algorithm>

#include "base/crc32c.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using base::StatusIs;
using protocol::FrameHeader;
using protocol::kHeaderBytes;

// One frame as bytes.
std::vector<uint8_t> FrameOf(const std::vector<uint8_t>& payload) {
  FrameHeader header;
  header.leg = protocol::Leg::kUp;
  header.bytes = static_cast<uint32_t>(payload.size());
  header.payload_crc = base::Crc32c(payload.data(), payload.size());
  std::vector<uint8_t> bytes(kHeaderBytes);
  protocol::EncodeHeader(header, bytes.data());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

class FrameDecoderTest : public ::testing::Test {
 protected:
  absl::Status Feed(const std::vector<uint8_t>& bytes) {
    return decoder_.Feed(bytes, &frames_);
  }
  FrameDecoder decoder_;
  std::vector<Frame> frames_;
};

TEST_F(FrameDecoderTest, CutsFramesFromPiecesOfAnySize) {
  std::vector<uint8_t> stream;
  const std::vector<uint8_t> payloads[] = {{1, 2, 3}, {}, {4}};
  for (const auto& payload : payloads) {
    const std::vector<uint8_t> frame = FrameOf(payload);
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    frames_.clear();
    for (size_t at = 0; at < stream.size(); at += piece) {
      const size_t end = std::min(at + piece, stream.size());
      ASSERT_OK(Feed({stream.begin() + at, stream.begin() + end}));
    }
    ASSERT_EQ(frames_.size(), 3u) << piece;
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(frames_[i].payload.bytes, absl::MakeConstSpan(payloads[i]));
    }
  }
}

// A header has 64 bytes: one fewer is none yet, one more is the next one's.
TEST_F(FrameDecoderTest, sec_limits_BytesOfAHeader) {
  std::vector<uint8_t> header = FrameOf({});
  ASSERT_EQ(header.size(), 64u);
  const uint8_t last = header.back();
  header.pop_back();
  EXPECT_OK(Feed(header));
  EXPECT_TRUE(frames_.empty());
  EXPECT_OK(Feed({last}));
  EXPECT_EQ(frames_.size(), 1u);
  // Of a header with a byte too many, that byte begins the next, which is none.
  EXPECT_OK(Feed({last}));
  EXPECT_THAT(Feed(FrameOf({})), StatusIs(absl::StatusCode::kDataLoss,
                                          ::testing::HasSubstr("magic")));
  EXPECT_EQ(frames_.size(), 1u);
}

TEST_F(FrameDecoderTest, ADamagedPayloadIsDataLossAndNoFrame) {
  std::vector<uint8_t> frame = FrameOf({1, 2, 3});
  frame.back() ^= 1;
  EXPECT_THAT(Feed(frame), StatusIs(absl::StatusCode::kDataLoss,
                                    ::testing::HasSubstr("CRC")));
  EXPECT_TRUE(frames_.empty());
}

// Nothing is allocated for what may not come.
TEST_F(FrameDecoderTest, sec_limits_PayloadOfAFrame) {
  FrameHeader header;
  header.leg = protocol::Leg::kUp;
  std::vector<uint8_t> bytes(kHeaderBytes);
  header.bytes = protocol::kMaxFramePayload;
  protocol::EncodeHeader(header, bytes.data());
  EXPECT_OK(Feed(bytes));
  decoder_ = FrameDecoder();
  header.bytes = protocol::kMaxFramePayload + 1;
  protocol::EncodeHeader(header, bytes.data());
  EXPECT_THAT(Feed(bytes), StatusIs(absl::StatusCode::kInvalidArgument,
                                    ::testing::HasSubstr("bytes")));
}

}  // namespace
}  // namespace pactrain::agent
