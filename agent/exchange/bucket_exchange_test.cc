// What a member refuses; sums and orders are in tests/exchange.
#include "agent/exchange/bucket_exchange.h"

#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using base::StatusIs;
using protocol::FrameHeader;
using protocol::Leg;

// Two sites of one agent each; site a is the root. This is member 0.
class BucketExchangeTest : public testing::Test {
 protected:
  BucketExchangeTest() {
    protocol::Generation g;
    g.sites = {"a", "b"};
    g.members.resize(2);
    g.members[0].site = "a";
    g.members[1].site = "b";
    g.plan.trees = {{{0, 0}}};
    schedule_ = std::make_unique<Schedule>(g, 0);
    BucketExchange::Options options;
    options.schedule = schedule_.get();
    options.context.bucket = 3;
    options.context.elements = 5;
    options.step = 9;
    options.attempt = 2;
    auto local = std::make_shared<float[]>(5);
    for (int i = 0; i < 5; ++i) local[i] = static_cast<float>(i);
    options.local = local;
    options.result = absl::MakeSpan(result_);
    exchange_ = std::make_unique<BucketExchange>(options);

    header_.context = exchange_->digest();
    header_.step = 9;
    header_.attempt = 2;
    header_.bucket = 3;
    header_.leg = Leg::kUp;
    header_.source = 1;
    header_.bytes = 20;
    header_.elements = 5;
    auto values = std::make_shared<std::vector<float>>(5, 10.0f);
    payload_.bytes = absl::MakeConstSpan(
        reinterpret_cast<const uint8_t*>(values->data()), 20);
    payload_.owner = values;
  }

  std::unique_ptr<Schedule> schedule_;
  std::vector<float> result_ = std::vector<float>(5);
  std::unique_ptr<BucketExchange> exchange_;
  FrameHeader header_;
  Payload payload_;
  std::vector<OutgoingFrame> out_;
};

TEST_F(BucketExchangeTest, AFrameIsFoldedOnceAndPassedDownUnchanged) {
  EXPECT_OK(exchange_->Extend(5, out_));
  EXPECT_TRUE(out_.empty());
  EXPECT_OK(exchange_->Receive(1, header_, payload_, out_));
  EXPECT_OK(exchange_->Receive(1, header_, payload_, out_));
  EXPECT_TRUE(exchange_->done());
  EXPECT_EQ(result_, (std::vector<float>{10, 11, 12, 13, 14}));
  ASSERT_EQ(out_.size(), 1u);
  EXPECT_EQ(out_[0].header.leg, Leg::kDown);
  EXPECT_EQ(out_[0].member, 1);
}

TEST_F(BucketExchangeTest, AFrameWaitsUntilAllOfItsLocalSumIsHere) {
  EXPECT_OK(exchange_->Extend(4, out_));
  EXPECT_OK(exchange_->Receive(1, header_, payload_, out_));
  EXPECT_FALSE(exchange_->done());
  EXPECT_TRUE(out_.empty());
  EXPECT_OK(exchange_->Extend(5, out_));
  EXPECT_TRUE(exchange_->done());
  EXPECT_EQ(result_, (std::vector<float>{10, 11, 12, 13, 14}));
  EXPECT_EQ(out_.size(), 1u);
}

TEST_F(BucketExchangeTest, EveryFieldThatDoesNotFitIsRefused) {
  using Spoil = void (*)(FrameHeader&);
  const Spoil spoils[] = {
      [](FrameHeader& h) { h.context.lo ^= 1; },
      [](FrameHeader& h) { h.step = 8; },
      [](FrameHeader& h) { h.attempt = 1; },
      [](FrameHeader& h) { h.bucket = 4; },
      [](FrameHeader& h) { h.chunk = 1; },
      [](FrameHeader& h) { h.frame = 1; },
      [](FrameHeader& h) { h.elements = 4; },
      [](FrameHeader& h) { h.bytes = 16; },
      [](FrameHeader& h) { h.codec = protocol::Codec::kBf16; },
      [](FrameHeader& h) { h.source = 0; },
      [](FrameHeader& h) { h.leg = Leg::kSiteSum; },  // Not of this site.
      [](FrameHeader& h) { h.leg = Leg::kDown; },     // This is the root.
      [](FrameHeader& h) { h.leg = Leg::kFanOut; },   // This is the owner.
      [](FrameHeader& h) { h.leg = Leg::kSwap; },     // The plan has a tree.
      [](FrameHeader& h) { h.leg = Leg::kControl; },
  };
  for (Spoil spoil : spoils) {
    FrameHeader header = header_;
    spoil(header);
    EXPECT_THAT(exchange_->Receive(1, header, payload_, out_),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  }
  EXPECT_FALSE(exchange_->Receive(0, header_, payload_, out_).ok());
  EXPECT_OK(exchange_->Extend(5, out_));
  EXPECT_FALSE(exchange_->done());
  EXPECT_TRUE(out_.empty());
  // None of them has spoiled what the right one finds.
  EXPECT_OK(exchange_->Receive(1, header_, payload_, out_));
  EXPECT_TRUE(exchange_->done());
}

// A frame that is empty would look like one that is not here yet.
TEST_F(BucketExchangeTest, sec_limits_BytesOfALevelsFrame) {
  constexpr protocol::Codec kCodec = protocol::Codec::kLevels7;
  constexpr uint32_t kElements = 1000;
  const auto refusal = [&](size_t bytes) {
    BucketExchange::Options options;
    options.schedule = schedule_.get();
    options.context.codec = kCodec;
    options.context.elements = kElements;
    options.local = std::make_shared<float[]>(kElements);
    std::vector<float> result(kElements);
    options.result = absl::MakeSpan(result);
    BucketExchange exchange(options);
    FrameHeader header = header_;
    header.context = exchange.digest();
    header.step = options.step;
    header.attempt = options.attempt;
    header.bucket = 0;
    header.codec = kCodec;
    header.elements = kElements;
    header.bytes = static_cast<uint32_t>(bytes);
    const auto payload = std::make_shared<std::vector<uint8_t>>(bytes);
    return std::string(
        exchange.Receive(1, header, {payload, *payload}, out_).message());
  };
  const Codec::Bytes allowed = CodecFor(kCodec).BytesFor(kElements);
  EXPECT_THAT(refusal(0), testing::HasSubstr("bytes is 0, want 1"));
  EXPECT_EQ(refusal(allowed.least), "");  // It is looked at when it is folded.
  EXPECT_EQ(refusal(allowed.most), "");
  EXPECT_THAT(refusal(allowed.most + 1),
              testing::HasSubstr(absl::StrFormat(
                  "bytes is %d, want %d", allowed.most + 1, allowed.most)));
}

// A frame of a bucket that has one element more than fit into it.
TEST_F(BucketExchangeTest, sec_limits_ElementsOfAFrame) {
  // What is wrong with a frame of so many elements, of 4 bytes each.
  const auto refusal = [&](protocol::Codec codec, uint32_t limit,
                           uint32_t elements) {
    BucketExchange::Options options;
    options.schedule = schedule_.get();
    options.context.codec = codec;
    options.context.elements = limit + 1;
    options.local = std::make_shared<float[]>(limit + 1);
    std::vector<float> result(limit + 1);
    options.result = absl::MakeSpan(result);
    BucketExchange exchange(options);
    FrameHeader header = header_;
    header.context = exchange.digest();
    header.step = options.step;
    header.attempt = static_cast<uint16_t>(options.attempt);
    header.bucket = 0;
    header.codec = codec;
    header.elements = elements;
    header.bytes = 4 * elements;
    const auto values = std::make_shared<std::vector<float>>(elements);
    const Payload payload = {
        values,
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values->data()),
                            header.bytes)};
    return std::string(exchange.Receive(1, header, payload, out_).message());
  };
  constexpr uint32_t kLimit = protocol::kFrameElements;
  EXPECT_EQ(refusal(protocol::Codec::kFp32, kLimit, kLimit), "");
  EXPECT_THAT(refusal(protocol::Codec::kFp32, kLimit, kLimit + 1),
              testing::HasSubstr("elements is 4097, want 4096"));
  // Its bytes are none of 7 levels; they are looked at next.
  constexpr uint32_t kLevels = protocol::kLevelsFrameElements;
  EXPECT_THAT(refusal(protocol::Codec::kLevels7, kLevels, kLevels),
              testing::HasSubstr("bytes is 65536, want "));
  EXPECT_THAT(refusal(protocol::Codec::kLevels7, kLevels, kLevels + 1),
              testing::HasSubstr("elements is 16385, want 16384"));
}

TEST_F(BucketExchangeTest, BytesThatNoEncoderWritesAreAnErrorNotASum) {
  BucketExchange::Options options;
  options.schedule = schedule_.get();
  options.context.elements = 5;
  options.context.codec = protocol::Codec::kLevels7;
  options.local = std::make_shared<float[]>(5);
  options.result = absl::MakeSpan(result_);
  BucketExchange exchange(options);
  const size_t bytes = CodecFor(protocol::Codec::kLevels7).BytesFor(5).most;
  auto garbage = std::make_shared<std::vector<uint8_t>>(bytes, 0xff);
  FrameHeader header = header_;
  header.context = exchange.digest();
  header.step = 0;
  header.attempt = 1;
  header.bucket = 0;
  header.codec = protocol::Codec::kLevels7;
  header.bytes = static_cast<uint32_t>(bytes);
  // Seen when it is folded: whatever comes last tells.
  EXPECT_OK(exchange.Receive(1, header, {garbage, *garbage}, out_));
  EXPECT_THAT(exchange.Extend(5, out_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("none that an encoder writes")));
  EXPECT_FALSE(exchange.done());
  EXPECT_TRUE(out_.empty());
}

}  // namespace
}  // namespace pactrain::agent
