#include "base/crc32c.h"

#include <array>
#include <cstring>

namespace pactrain::base {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, bit-reversed.

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    }
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

constexpr uint32_t Portable(uint32_t crc, const uint8_t* p, size_t n) {
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ kTable[(crc ^ *p) & 0xff];
  return crc;
}

// Tests run where the processor has the instruction. RFC 3720's check value.
constexpr uint8_t kDigits[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
static_assert(~Portable(~0u, kDigits, sizeof(kDigits)) == 0xe3069283);

#if defined(__x86_64__)
// What appending zero bytes does to a CRC: linear, a column per bit.
using Matrix = std::array<uint32_t, 32>;

constexpr uint32_t Times(const Matrix& columns, uint32_t crc) {
  uint32_t product = 0;
  for (int bit = 0; bit < 32; ++bit) {
    if ((crc >> bit) & 1) product ^= columns[bit];
  }
  return product;
}

constexpr Matrix ZeroBytes(size_t bytes) {  // A power of two.
  Matrix shift{kPolynomial};                // One bit.
  for (int bit = 1; bit < 32; ++bit) shift[bit] = 1u << (bit - 1);
  for (size_t bits = 1; bits < 8 * bytes; bits *= 2) {
    Matrix twice{};
    for (int bit = 0; bit < 32; ++bit) twice[bit] = Times(shift, shift[bit]);
    shift = twice;
  }
  return shift;
}

using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr ShiftTable MakeShiftTable(size_t bytes) {
  const Matrix shift = ZeroBytes(bytes);
  ShiftTable table{};
  for (int byte = 0; byte < 4; ++byte) {
    for (uint32_t i = 0; i < 256; ++i) {
      table[byte][i] = Times(shift, i << (8 * byte));
    }
  }
  return table;
}

template <size_t kBytes>
uint32_t Shift(uint32_t crc) {
  static constexpr ShiftTable kShift = MakeShiftTable(kBytes);
  return kShift[0][crc & 0xff] ^ kShift[1][(crc >> 8) & 0xff] ^
         kShift[2][(crc >> 16) & 0xff] ^ kShift[3][crc >> 24];
}

__attribute__((target("sse4.2"))) inline uint64_t Step(uint64_t crc,
                                                       const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return __builtin_ia32_crc32di(crc, word);
}

// Three blocks at a time: the instruction is done after three cycles, and one
// can begin in each.
template <size_t kBlock>
__attribute__((target("sse4.2"))) uint32_t Blocks(uint32_t crc,
                                                  const uint8_t** data,
                                                  size_t* bytes) {
  for (; *bytes >= 3 * kBlock; *bytes -= 3 * kBlock, *data += 3 * kBlock) {
    uint64_t a = crc, b = 0, c = 0;
    const uint8_t* const p = *data;
    for (size_t i = 0; i < kBlock; i += 8) {
      a = Step(a, p + i);
      b = Step(b, p + kBlock + i);
      c = Step(c, p + 2 * kBlock + i);
    }
    crc = Shift<kBlock>(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    crc = Shift<kBlock>(crc) ^ static_cast<uint32_t>(c);
  }
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t Sse42(uint32_t crc, const uint8_t* p,
                                                 size_t n) {
  crc = Blocks<2048>(crc, &p, &n);
  crc = Blocks<256>(crc, &p, &n);
  uint64_t wide = crc;
  for (; n >= 8; n -= 8, p += 8) wide = Step(wide, p);
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; --n, ++p) crc = __builtin_ia32_crc32qi(crc, *p);
  return crc;
}
#endif

}  // namespace

uint32_t Crc32c(const void* data, size_t bytes) {
  const auto* p = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2");
  if (has_sse42) return ~Sse42(~0u, p, bytes);
#endif
  return ~Portable(~0u, p, bytes);
}

}  // namespace pactrain::base
