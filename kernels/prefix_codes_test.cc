#include "kernels/prefix_codes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/levels_format.h"

namespace pactrain::kernels::levels {
namespace {

constexpr Levels kAll[] = {Levels::k3, Levels::k5, Levels::k7, Levels::k15,
                           Levels::k31};
using Codes = std::vector<uint8_t>;

// Around zero, the farther the larger `spread` is; at 100 they are even.
Codes Draw(Levels levels, size_t elements, double spread, int seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, spread);
  const int half = Half(levels);
  Codes codes(elements);
  for (uint8_t& code : codes) {
    long q = std::lround(normal(random));
    if (spread == 100) q = static_cast<int>(random() % (2 * half + 1)) - half;
    code = static_cast<uint8_t>(std::clamp<long>(q, -half, half) + half);
  }
  return codes;
}

std::vector<uint8_t> Written(Levels levels, int number, const Codes& codes) {
  std::vector<uint8_t> out(6 + 2 * codes.size() + 4);
  out.resize(WritePrefixCoded(levels, number, codes.data(), codes.size(),
                              out.data(), out.size()));
  return out;
}

// A decoder of one word after the other, from their lengths alone.
class DumbReader {
 public:
  DumbReader(Levels levels, int number) {
    const int count = static_cast<int>(levels), half = Half(levels);
    std::vector<uint8_t> order = {static_cast<uint8_t>(half)};
    for (int q = 1; q <= half; ++q) {
      order.push_back(static_cast<uint8_t>(half + q));
      order.push_back(static_cast<uint8_t>(half - q));
    }
    uint32_t next = 0;
    for (int length = 1; length <= kMaxWordBits; ++length, next <<= 1) {
      for (uint8_t code : order) {
        if (WordBits(levels, number, code) != length) continue;
        words_.push_back({length, next++, code});
      }
    }
    EXPECT_EQ(words_.size(), static_cast<size_t>(count));
  }
  // From bit `at` of `bytes`; moves it on.
  uint8_t Next(const uint8_t* bytes, size_t* at) const {
    uint32_t bits = 0;
    for (int length = 1; length <= kMaxWordBits; ++length, ++*at) {
      bits = bits << 1 | (bytes[*at / 8] >> (*at % 8) & 1);
      for (const Word& word : words_) {
        if (word.length != length || word.bits != bits) continue;
        ++*at;
        return word.code;
      }
    }
    ADD_FAILURE() << "no word";
    return 0;
  }

 private:
  struct Word {
    int length;
    uint32_t bits;
    uint8_t code;
  };
  std::vector<Word> words_;
};

template <class Check>
void ForAllCodes(Check check) {
  for (Levels levels : kAll) {
    for (int number = 1; number <= PrefixCodeCount(levels); ++number) {
      SCOPED_TRACE(std::to_string(static_cast<int>(levels)) + " levels, code " +
                   std::to_string(number));
      check(levels, number);
    }
  }
}

TEST(PrefixCodes, AreComplete) {
  ForAllCodes([](Levels levels, int number) {
    double sum = 0;
    for (int code = 0; code < static_cast<int>(levels); ++code) {
      const int bits = WordBits(levels, number, static_cast<uint8_t>(code));
      EXPECT_GE(bits, 1);
      EXPECT_LE(bits, kMaxWordBits);
      sum += std::ldexp(1, -bits);
    }
    EXPECT_EQ(sum, 1);
  });
}

TEST(PrefixCodes, ReadingUndoesWriting) {
  ForAllCodes([](Levels levels, int number) {
    for (size_t n : {1, 2, 3, 4, 5, 7, 8, 100, 255, 1000, 16384, 65536}) {
      for (double spread : {0.0, 0.7, 3.0, 100.0}) {
        const Codes codes = Draw(levels, n, spread);
        Codes back(n, 99);
        ASSERT_TRUE(ReadPrefixCoded(
            levels, number, Written(levels, number, codes), back.data(), n));
        ASSERT_EQ(back, codes) << n;
      }
    }
  });
}

TEST(PrefixCodes, WhatIsWrittenIsWhatTheHeaderSays) {
  ForAllCodes([](Levels levels, int number) {
    const DumbReader reader(levels, number);
    for (size_t n : {1, 6, 403}) {
      const Codes codes = Draw(levels, n, 2.0);
      const std::vector<uint8_t> bytes = Written(levels, number, codes);
      size_t stream = 6;
      const size_t quarter = (n + 3) / 4;
      for (size_t s = 0; s < 4; ++s) {
        const size_t end = std::min(n, (s + 1) * quarter);
        size_t bit = 0;
        for (size_t i = std::min(n, s * quarter); i < end; ++i) {
          ASSERT_EQ(reader.Next(bytes.data() + stream, &bit), codes[i]) << i;
        }
        const size_t size = (bit + 7) / 8;
        if (s < 3) {
          ASSERT_EQ(bytes[2 * s] + 256u * bytes[2 * s + 1], size);
        }
        stream += size;
      }
      EXPECT_EQ(stream, bytes.size());
    }
  });
}

TEST(PrefixCodes, TheOneThatIsChosenIsAboutTheShortest) {
  for (Levels levels : kAll) {
    for (double spread : {0.1, 0.3, 0.7, 1.0, 1.5, 2.5, 4.0, 100.0}) {
      const Codes codes = Draw(levels, 16384, spread);
      const auto bytes = [&](int number) {
        return Written(levels, number, codes).size();
      };
      size_t least = bytes(1);
      for (int n = 2; n <= PrefixCodeCount(levels); ++n) {
        least = std::min(least, bytes(n));
      }
      const int chosen = ChoosePrefixCode(levels, codes.data(), codes.size());
      EXPECT_LE(static_cast<double>(bytes(chosen)),
                1.01 * static_cast<double>(least))
          << static_cast<int>(levels) << " levels, spread " << spread;
    }
  }
}

// One channel of a few is large.
TEST(PrefixCodes, ASampleSeesWhatComesInPeriods) {
  for (Levels levels : kAll) {
    for (size_t period : {2, 4, 8, 64}) {
      Codes codes = Draw(levels, 16384, 0.2);
      const Codes large = Draw(levels, codes.size(), 100);
      for (size_t i = 0; i < codes.size(); i += period) codes[i] = large[i];
      size_t least = ~size_t{0};
      for (int n = 1; n <= PrefixCodeCount(levels); ++n) {
        least = std::min(least, Written(levels, n, codes).size());
      }
      const int chosen = ChoosePrefixCode(levels, codes.data(), codes.size());
      EXPECT_LE(static_cast<double>(Written(levels, chosen, codes).size()),
                1.02 * static_cast<double>(least))
          << static_cast<int>(levels) << " levels, period " << period;
    }
  }
}

TEST(PrefixCodes, NothingIsWrittenBeyondTheMost) {
  ForAllCodes([](Levels levels, int number) {
    const Codes codes = Draw(levels, 1000, 1.0);
    const size_t size = Written(levels, number, codes).size();
    std::vector<uint8_t> out(size + 16, 0xab);
    const auto write = [&](size_t most) {
      return WritePrefixCoded(levels, number, codes.data(), codes.size(),
                              out.data(), most);
    };
    EXPECT_EQ(write(size - 1), 0u);
    EXPECT_EQ(out[size - 1], 0xab);
    EXPECT_EQ(write(size), size);
    for (size_t i = size; i < out.size(); ++i) EXPECT_EQ(out[i], 0xab);
  });
}

// Of what is no coded form, and of damaged ones: they are read in bounds
// (under the sanitizers), give codes in range, or are refused.
TEST(PrefixCodes, AnyBytesAreReadInBounds) {
  std::mt19937 random(3);
  ForAllCodes([&](Levels levels, int number) {
    for (size_t n : {1, 40, 1000}) {
      const std::vector<uint8_t> good =
          Written(levels, number, Draw(levels, n, 1.0));
      for (int draw = 0; draw < 300; ++draw) {
        std::vector<uint8_t> bytes = good;
        if (draw % 3 == 0) bytes.resize(random() % (bytes.size() + 20));
        for (size_t i = 0; i < bytes.size(); ++i) {
          if (draw % 2 == 0 || random() % bytes.size() == 0)
            bytes[i] = random();
        }
        const std::vector<uint8_t> exact(bytes);  // No room behind.
        Codes codes(n, 0);
        if (!ReadPrefixCoded(levels, number, exact, codes.data(), n)) continue;
        for (uint8_t code : codes) ASSERT_LT(code, static_cast<int>(levels));
        // One form for what is accepted.
        EXPECT_EQ(Written(levels, number, codes), bytes);
      }
    }
  });
}

}  // namespace
}  // namespace pactrain::kernels::levels
