#include "base/crc32c.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

// RFC 3720, B.4.
TEST(Crc32cTest, MatchesThePublishedVectors) {
  const std::string zeros(32, '\0');
  const std::string ones(32, '\xff');
  std::string rising(32, '\0');
  std::iota(rising.begin(), rising.end(), '\0');
  const std::string falling(rising.rbegin(), rising.rend());
  EXPECT_EQ(Crc32c(zeros.data(), zeros.size()), 0x8a9136aau);
  EXPECT_EQ(Crc32c(ones.data(), ones.size()), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(rising.data(), rising.size()), 0x46dd794eu);
  EXPECT_EQ(Crc32c(falling.data(), falling.size()), 0x113fdb5cu);
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c("", 0), 0u);
}

std::vector<uint8_t> Bytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  }
  return bytes;
}

// Bit by bit, as RFC 3720 defines it.
uint32_t SlowCrc32c(const uint8_t* data, size_t bytes) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
    }
  }
  return ~crc;
}

TEST(Crc32cTest, EveryShortLengthFromEveryStartIsRight) {
  const std::vector<uint8_t> data = Bytes(8 + 300);
  for (size_t start = 0; start < 8; ++start) {
    for (size_t bytes = 0; bytes <= 300; ++bytes) {
      ASSERT_EQ(Crc32c(&data[start], bytes), SlowCrc32c(&data[start], bytes))
          << bytes << " from " << start;
    }
  }
}

// Where the blocks begin and end that are taken three at a time.
TEST(Crc32cTest, LongLengthsAreRight) {
  const std::vector<uint8_t> data = Bytes(20008);
  for (size_t start : {0, 3}) {
    for (size_t bytes : {767, 768, 769, 1535, 1536, 6143, 6144, 6145, 6911,
                         6912, 6919, 8192, 12288, 20000}) {
      EXPECT_EQ(Crc32c(&data[start], bytes), SlowCrc32c(&data[start], bytes))
          << bytes << " from " << start;
    }
  }
}

}  // namespace
}  // namespace pactrain::base
