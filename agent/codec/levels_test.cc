#include "agent/codec/levels.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "agent/codec/dither.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using protocol::Leg;
using Floats = std::vector<float>;

constexpr protocol::Codec kLevelCodecs[] = {
    protocol::Codec::kLevels3, protocol::Codec::kLevels5,
    protocol::Codec::kLevels7, protocol::Codec::kLevels15,
    protocol::Codec::kLevels31};

Floats Gaussian(size_t elements, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats out(elements);
  for (float& x : out) x = normal(random);
  return out;
}

// A bucket frame by frame, as the exchange sends it. Adds to `*error` what the
// encoder says of it.
Floats Through(protocol::Codec which, const Floats& in, uint64_t key,
               double* error) {
  const Codec& codec = CodecFor(which);
  Floats out(in.size());
  constexpr size_t kFrame = 16384;
  for (size_t i = 0; i < in.size(); i += kFrame) {
    const size_t count = std::min(kFrame, in.size() - i);
    const Dither dither = {key, static_cast<uint32_t>(i)};
    std::vector<uint8_t> bytes(codec.BytesFor(count).most);
    const Encoded encoded =
        codec.Encode(in.data() + i, count, dither, true, bytes.data(), nullptr);
    *error += encoded.noise.error_squared;
    bytes.resize(encoded.bytes);
    EXPECT_OK(codec.Decode(bytes, count, dither, out.data() + i));
  }
  return out;
}

Floats Sum(const Floats& a, const Floats& b) {
  Floats sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

double SquaredDistance(const Floats& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  }
  return sum;
}

// Three sites in a chain, the middle one is the root: two encodes on the way
// up, and one of the total, which all apply. `keys`: by site.
double ChainNmse(protocol::Codec which, const uint64_t keys[3], double* error) {
  constexpr size_t kElements = 1 << 18;
  const Floats left = Gaussian(kElements, 1);
  const Floats root = Gaussian(kElements, 2);
  const Floats right = Gaussian(kElements, 3);
  const Floats total = Sum(Sum(root, Through(which, left, keys[0], error)),
                           Through(which, right, keys[2], error));
  const Floats result = Through(which, total, keys[1], error);
  const Floats exact = Sum(Sum(left, root), right);
  return SquaredDistance(exact, result) /
         SquaredDistance(exact, Floats(kElements));
}

TEST(LevelsExchange, NoiseOfAChainOfThreeSitesMeetsItsGoal) {
  const uint64_t keys[3] = {DitherKey(0, 5, 2, 0, Leg::kUp),
                            DitherKey(0, 5, 2, 1, Leg::kDown),
                            DitherKey(0, 5, 2, 2, Leg::kUp)};
  double error = 0;
  EXPECT_LE(ChainNmse(protocol::Codec::kLevels7, keys, &error), 0.15);
  EXPECT_LE(ChainNmse(protocol::Codec::kLevels15, keys, &error), 0.03);
}

TEST(LevelsExchange, TheEncodersReportsAddUpToTheNoiseOfTheExchange) {
  const uint64_t keys[3] = {1, 2, 3};
  for (protocol::Codec codec :
       {protocol::Codec::kLevels7, protocol::Codec::kLevels15}) {
    double error = 0;
    const double nmse = ChainNmse(codec, keys, &error);
    // The exact total has three times the square of one site's sum.
    const double reported = error / (3.0 * (1 << 18));
    EXPECT_NEAR(reported / nmse, 1, 0.02);
  }
}

TEST(LevelsCodec, ARepeatedAttemptSendsTheSameBytes) {
  const Floats in = Gaussian(3000, 1);
  for (protocol::Codec which : kLevelCodecs) {
    const Codec& codec = CodecFor(which);
    std::vector<uint8_t> a(codec.BytesFor(in.size()).most), b = a, c = a;
    codec.Encode(in.data(), in.size(), {7, 2048}, true, a.data(), nullptr);
    codec.Encode(in.data(), in.size(), {7, 2048}, true, b.data(), nullptr);
    codec.Encode(in.data(), in.size(), {8, 2048}, true, c.data(), nullptr);
    EXPECT_EQ(a, b);
    EXPECT_NE(a, c);
  }
}

TEST(LevelsCodec, ShorterIsShorterAndDecodesToTheSame) {
  const Floats in = Gaussian(3000, 1);
  for (protocol::Codec which : kLevelCodecs) {
    const Codec& codec = CodecFor(which);
    const size_t most = codec.BytesFor(in.size()).most;
    std::vector<uint8_t> a(most), b(most);
    Floats x(in.size()), y(in.size());
    a.resize(
        codec.Encode(in.data(), in.size(), {7, 0}, false, a.data(), nullptr)
            .bytes);
    EXPECT_EQ(a.size(), most);
    b.resize(codec.Encode(in.data(), in.size(), {7, 0}, true, b.data(), nullptr)
                 .bytes);
    EXPECT_LT(b.size(), most);
    EXPECT_OK(codec.Decode(a, in.size(), {7, 0}, x.data()));
    EXPECT_OK(codec.Decode(b, in.size(), {7, 0}, y.data()));
    EXPECT_EQ(x, y);
  }
}

TEST(LevelsCodec, BytesThatNoEncoderWritesAreRefusedInWords) {
  for (protocol::Codec which : kLevelCodecs) {
    const Codec& codec = CodecFor(which);
    const std::vector<uint8_t> bytes(codec.BytesFor(2048).most, 0xff);
    Floats out(2048);
    const absl::Status status =
        codec.Decode(bytes, out.size(), Dither{}, out.data());
    EXPECT_THAT(status, base::StatusIs(
                            absl::StatusCode::kInvalidArgument,
                            testing::HasSubstr("none that an encoder writes")));
  }
}

TEST(LevelsCodec, TakesAWholeChunkAndNothing) {
  const Floats in = Gaussian(protocol::kChunkElements, 1);
  for (protocol::Codec which : kLevelCodecs) {
    const Codec& codec = CodecFor(which);
    std::vector<uint8_t> bytes(codec.BytesFor(in.size()).most);
    Floats out(in.size());
    const Encoded encoded = codec.Encode(in.data(), in.size(), Dither{}, true,
                                         bytes.data(), nullptr);
    bytes.resize(encoded.bytes);
    EXPECT_OK(codec.Decode(bytes, in.size(), Dither{}, out.data()));
    EXPECT_NEAR(SquaredDistance(in, out) / encoded.noise.error_squared, 1,
                1e-6);
    EXPECT_EQ(codec.BytesFor(0).most, 0u);
    EXPECT_EQ(codec.Encode(nullptr, 0, Dither{}, true, nullptr, nullptr).bytes,
              0u);
    EXPECT_OK(codec.Decode({}, 0, Dither{}, nullptr));
  }
}

TEST(DitherKey, EveryFieldMatters) {
  const std::set<uint64_t> keys = {
      DitherKey(1, 2, 3, 4, Leg::kUp), DitherKey(2, 2, 3, 4, Leg::kUp),
      DitherKey(1, 3, 3, 4, Leg::kUp), DitherKey(1, 2, 4, 4, Leg::kUp),
      DitherKey(1, 2, 3, 5, Leg::kUp), DitherKey(1, 2, 3, 4, Leg::kDown)};
  EXPECT_EQ(keys.size(), 6u);
  EXPECT_EQ(DitherKey(1, 2, 3, 4, Leg::kUp), DitherKey(1, 2, 3, 4, Leg::kUp));
}

}  // namespace
}  // namespace pactrain::agent
