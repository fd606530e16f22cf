#include "agent/codec/codec.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

std::vector<float> Through(protocol::Codec which,
                           const std::vector<float>& in) {
  const Codec& codec = CodecFor(which);
  const Codec::Bytes size = codec.BytesFor(in.size());
  EXPECT_EQ(size.least, size.most);
  std::vector<uint8_t> bytes(size.most);
  std::vector<float> out(in.size()), known(in.size());
  EXPECT_EQ(codec
                .Encode(in.data(), in.size(), Dither{}, true, bytes.data(),
                        known.data())
                .bytes,
            size.most);
  EXPECT_TRUE(codec.Decode(bytes, in.size(), Dither{}, out.data()).ok());
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(known[i]),
              std::bit_cast<uint32_t>(out[i]));
  }
  return out;
}

TEST(Fp32, KeepsEveryBit) {
  const float odd_nan = std::bit_cast<float>(0x7fc12345u);
  const std::vector<float> in = {0.0f, -0.0f, 1.1f, odd_nan, INFINITY, 1e-42f};
  const std::vector<float> out = Through(protocol::Codec::kFp32, in);
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(in[i]));
  }
  EXPECT_TRUE(Through(protocol::Codec::kFp32, {}).empty());
}

TEST(Bf16, RoundsToNearestEvenAndKeepsSpecials) {
  // 1 + 2^-8 lies half way between 1 and 1 + 2^-7: the even one is 1.
  const std::vector<float> out = Through(
      protocol::Codec::kBf16, {1.0f, 1.00390625f, 1.01171875f, -3.0f, INFINITY,
                               std::numeric_limits<float>::max()});
  EXPECT_EQ(out, (std::vector<float>{1.0f, 1.0f, 1.015625f, -3.0f, INFINITY,
                                     INFINITY}));
  EXPECT_TRUE(std::isnan(Through(protocol::Codec::kBf16, {NAN})[0]));
}

TEST(Bf16, IsIdempotent) {
  std::vector<float> in;
  for (int i = 0; i < 1000; ++i)
    in.push_back(std::sin(i) * std::exp(i % 40 - 20));
  const std::vector<float> once = Through(protocol::Codec::kBf16, in);
  EXPECT_EQ(Through(protocol::Codec::kBf16, once), once);
}

}  // namespace
}  // namespace pactrain::agent
