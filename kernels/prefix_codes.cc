#include "kernels/prefix_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/levels_format.h"

namespace pactrain::kernels::levels {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kStreams = 4;
constexpr size_t kSizesBytes = 2 * (kStreams - 1);
constexpr size_t kMaxLevels = 31;
constexpr uint32_t kLookups = 1u << kMaxWordBits;

// Bits of the words of q = 0, 1, -1, 2, -2, ...: of Huffman's codes for
// generalised Gaussians, from uniform to long tails, with blocks of one and of
// very different sizes, a few that are mostly within 2 % of the best for each
// (at most 4 % were seen).
using Lengths = std::vector<uint8_t>;
const std::vector<Lengths>& LengthsOf(Levels levels) {
  static const std::vector<Lengths> k3 = {{1, 2, 2}};
  static const std::vector<Lengths> k5 = {
      {1, 2, 3, 4, 4}, {2, 2, 2, 3, 3}, {1, 3, 3, 3, 3}};
  static const std::vector<Lengths> k7 = {{1, 2, 3, 5, 5, 5, 5},
                                          {2, 2, 2, 3, 4, 5, 5},
                                          {1, 3, 3, 4, 4, 4, 4},
                                          {1, 2, 3, 4, 5, 6, 6},
                                          {2, 2, 3, 3, 3, 4, 4}};
  static const std::vector<Lengths> k15 = {
      {1, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 8, 8},
      {2, 3, 3, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7, 7},
      {1, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
      {3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 6, 6},
      {1, 3, 3, 4, 4, 6, 6, 6, 6, 6, 6, 7, 7, 7, 7},
      {2, 2, 2, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 8, 8}};
  static const std::vector<Lengths> k31 = {
      {1, 3, 3, 4, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 8, 8,
       8, 8, 8, 8, 8, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9},
      {3, 3, 3, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6,
       6, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8, 9, 9, 9, 9},
      {1, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6,
       6, 6, 6, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 9, 9},
      {2, 2, 3, 4, 4, 4, 5, 5, 5, 6,  6,  7,  7,  7,  7, 8,
       8, 8, 9, 9, 9, 9, 9, 9, 9, 10, 10, 10, 10, 10, 10},
      {4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5,
       5, 5, 5, 5, 5, 5, 5, 5, 5, 6, 6, 7, 7, 7, 7},
      {1, 3, 3,  4,  4,  5,  6,  6,  6,  7,  7,  8,  8,  8,  8, 9,
       9, 9, 10, 10, 10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 11}};
  switch (levels) {
    case Levels::k3:
      return k3;
    case Levels::k5:
      return k5;
    case Levels::k7:
      return k7;
    case Levels::k15:
      return k15;
    case Levels::k31:
      return k31;
  }
  __builtin_unreachable();
}

struct Word {
  uint32_t bits;  // The first one lowest.
  uint32_t length;
};

uint32_t Reversed(uint32_t bits, uint32_t length) {
  uint32_t out = 0;
  for (uint32_t i = 0; i < length; ++i) {
    out |= (bits >> i & 1) << (length - 1 - i);
  }
  return out;
}

// The codes whose words the next kMaxWordBits bits begin with, as many as are
// whole in them.
struct Lookup {
  static constexpr int kCodes = 7;
  uint8_t codes[kCodes];
  uint8_t count_and_bits;  // Upper and lower half.
};
static_assert(sizeof(Lookup) == 8);

struct Tables {
  Tables(Levels levels, const Lengths& lengths)
      : base(static_cast<size_t>(levels)), pairs(base * base) {
    // Canonical: of equal lengths the smaller |q| first.
    std::vector<size_t> order(base);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return lengths[a] < lengths[b];
    });
    uint32_t next = 0, before = 0;
    for (size_t place : order) {
      const uint32_t length = lengths[place];
      next <<= length - before;
      before = length;
      const int q = static_cast<int>(place + 1) / 2 * (place % 2 == 1 ? 1 : -1);
      words[static_cast<size_t>(q + Half(levels))] = {Reversed(next, length),
                                                      length};
      ++next;
    }
    for (size_t a = 0; a < base; ++a) {
      for (size_t b = 0; b < base; ++b) {
        pairs[a * base + b] = {words[a].bits | words[b].bits << words[a].length,
                               words[a].length + words[b].length};
      }
    }
    for (uint32_t bits = 0; bits < kLookups; ++bits) lookups[bits] = Find(bits);
  }

  Lookup Find(uint32_t bits) const {
    Lookup lookup = {};
    uint32_t used = 0, count = 0;
    for (bool found = true; found && count < Lookup::kCodes;) {
      found = false;
      for (size_t code = 0; code < base && !found; ++code) {
        const Word& word = words[code];
        if (used + word.length > kMaxWordBits) continue;
        const uint32_t mask = (1u << word.length) - 1;
        if ((bits >> used & mask) != word.bits) continue;
        lookup.codes[count++] = static_cast<uint8_t>(code);
        used += word.length;
        found = true;
      }
    }
    lookup.count_and_bits = static_cast<uint8_t>(count << 4 | used);
    return lookup;
  }

  const size_t base;
  std::array<Word, kMaxLevels> words = {};
  std::vector<Word> pairs;  // Of codes a, b: pairs[a base + b].
  std::array<Lookup, kLookups> lookups;
};

// One set per number of levels, made when it is first asked for.
template <Levels kLevels>
const std::vector<Tables>& TablesOf() {
  static const std::vector<Tables> tables = [] {
    std::vector<Tables> made;
    for (const Lengths& lengths : LengthsOf(kLevels)) {
      made.emplace_back(kLevels, lengths);
    }
    return made;
  }();
  return tables;
}

const Tables& TablesOf(Levels levels, int number) {
  const auto at = static_cast<size_t>(number - 1);
  switch (levels) {
    case Levels::k3:
      return TablesOf<Levels::k3>()[at];
    case Levels::k5:
      return TablesOf<Levels::k5>()[at];
    case Levels::k7:
      return TablesOf<Levels::k7>()[at];
    case Levels::k15:
      return TablesOf<Levels::k15>()[at];
    case Levels::k31:
      return TablesOf<Levels::k31>()[at];
  }
  __builtin_unreachable();
}

uint64_t Load64(const uint8_t* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// One stream as it is written. Its members are to stay in registers.
struct Writer {
  const uint8_t* from;
  uint8_t* to;
  uint64_t bits = 0;
  uint32_t held = 0;  // Of `bits`; below 8 after Flush().

  void Put(const Word& word) {
    bits |= uint64_t{word.bits} << held;
    held += word.length;
  }
  // Writes 8 bytes, of which only the whole ones count.
  void Flush() {
    std::memcpy(to, &bits, sizeof(bits));
    to += held >> 3;
    bits >>= held & ~7u;
    held &= 7;
  }
  void PutFour(const Word* pairs, size_t base) {
    Put(pairs[from[0] * base + from[1]]);
    Put(pairs[from[2] * base + from[3]]);
    Flush();
    from += 4;
  }
  // Returns the end of what is written.
  uint8_t* Finish(const Tables& tables, const uint8_t* end) {
    for (; from < end; ++from) {
      Put(tables.words[*from]);
      Flush();
    }
    return held > 0 ? to + 1 : to;
  }
};

using Codes = std::span<const uint8_t>;

// Two streams in turns: while the one waits for a table the other goes on.
// (Four do not fit into the registers.) The second has no more codes.
void WriteTwo(const Tables& tables, Codes first, Codes second,
              uint8_t* first_to, uint8_t* second_to, size_t* first_bytes,
              size_t* second_bytes) {
  Writer a{first.data(), first_to}, b{second.data(), second_to};
  const Word* const pairs = tables.pairs.data();
  const size_t base = tables.base;
  for (size_t i = second.size() / 4; i > 0; --i) {
    a.PutFour(pairs, base);
    b.PutFour(pairs, base);
  }
  *first_bytes = static_cast<size_t>(
      a.Finish(tables, first.data() + first.size()) - first_to);
  *second_bytes = static_cast<size_t>(
      b.Finish(tables, second.data() + second.size()) - second_to);
}

// One stream as it is read. Its members are to stay in registers.
struct Reader {
  const uint8_t* from;
  const uint8_t* end;
  uint8_t* to;
  uint8_t* to_end;
  uint32_t skip = 0;  // Bits at `from` that are read already; below 8.

  static constexpr int kTogether = 5;  // Lookups of one load: 55 of 57 bits.
  // So many lookups can be done, whatever they find.
  bool HasRoom() const {
    return to_end - to > kTogether * Lookup::kCodes && end - from >= 8;
  }
  void Several(const Lookup* lookups) {
    uint64_t window = Load64(from) >> skip;
    for (int i = 0; i < kTogether; ++i) {
      const Lookup* const lookup = lookups + (window & (kLookups - 1));
      std::memcpy(to, lookup, sizeof(*lookup));
      const uint32_t count_and_bits = lookup->count_and_bits;  // One load.
      to += count_and_bits >> 4;
      skip += count_and_bits & 15;
      window >>= count_and_bits & 15;
    }
    from += skip >> 3;
    skip &= 7;
  }
  // The rest, one code at a time. False: the bits are not just as many.
  bool Finish(const Tables& tables) {
    const auto bytes = static_cast<size_t>(end - from);
    size_t bit = skip;
    while (to < to_end) {
      const size_t at = bit / 8;
      if (at >= bytes) return false;
      uint64_t window = 0;
      std::memcpy(&window, from + at, std::min<size_t>(8, bytes - at));
      const uint8_t code =
          tables.lookups[window >> bit % 8 & (kLookups - 1)].codes[0];
      *to++ = code;
      bit += tables.words[code].length;
    }
    // Up to the last byte's end, all zeros.
    if ((bit + 7) / 8 != bytes) return false;
    return bit % 8 == 0 || from[bytes - 1] >> bit % 8 == 0;
  }
};

// As WriteTwo().
bool ReadTwo(const Tables& tables, Reader a, Reader b) {
  const Lookup* const lookups = tables.lookups.data();
  while (a.HasRoom() && b.HasRoom()) {
    a.Several(lookups);
    b.Several(lookups);
  }
  while (a.HasRoom()) a.Several(lookups);
  while (b.HasRoom()) b.Several(lookups);
  return a.Finish(tables) && b.Finish(tables);
}

// Where stream s begins, in codes; s = kStreams: the end.
size_t Begin(size_t stream, size_t elements) {
  return std::min(elements, stream * ((elements + kStreams - 1) / kStreams));
}

}  // namespace

int PrefixCodeCount(Levels levels) {
  return static_cast<int>(LengthsOf(levels).size());
}

int WordBits(Levels levels, int number, uint8_t code) {
  return static_cast<int>(TablesOf(levels, number).words[code].length);
}

int ChoosePrefixCode(Levels levels, const uint8_t* codes, size_t elements) {
  // Odd: channels and rows of a network come in powers of two, and a sample in
  // step with them would see the same ones again and again.
  constexpr size_t kEvery = 11;
  // Counted side by side: equal codes in a row do not wait for each other.
  uint32_t counts[2][kMaxLevels + 1] = {};
  for (size_t i = 0; i < elements; i += kEvery) {
    ++counts[i / kEvery % 2][codes[i]];
  }
  int best = 1;
  uint64_t least = ~uint64_t{0};
  for (int number = 1; number <= PrefixCodeCount(levels); ++number) {
    const Tables& tables = TablesOf(levels, number);
    uint64_t bits = 0;
    for (size_t code = 0; code < tables.base; ++code) {
      bits += uint64_t{counts[0][code] + counts[1][code]} *
              tables.words[code].length;
    }
    if (bits < least) {
      least = bits;
      best = number;
    }
  }
  return best;
}

size_t WritePrefixCoded(Levels levels, int number, const uint8_t* codes,
                        size_t elements, uint8_t* out, size_t most) {
  const Tables& tables = TablesOf(levels, number);
  constexpr size_t kRoom =
      (kMaxLevelsElements / kStreams + 1) * kMaxWordBits / 8 + 16;
  static_assert(kRoom <= 0xffff);  // Sizes are uint16.
  uint8_t streams[kStreams][kRoom];
  size_t sizes[kStreams];
  for (size_t s = 0; s < kStreams; s += 2) {
    WriteTwo(tables,
             {codes + Begin(s, elements), codes + Begin(s + 1, elements)},
             {codes + Begin(s + 1, elements), codes + Begin(s + 2, elements)},
             streams[s], streams[s + 1], &sizes[s], &sizes[s + 1]);
  }
  const size_t bytes =
      std::accumulate(sizes, sizes + kStreams, size_t{kSizesBytes});
  if (bytes > most) return 0;
  uint8_t* to = out + kSizesBytes;
  for (size_t s = 0; s < kStreams; ++s) {
    const auto size = static_cast<uint16_t>(sizes[s]);
    if (s + 1 < kStreams) std::memcpy(out + 2 * s, &size, sizeof(size));
    to = std::copy_n(streams[s], sizes[s], to);
  }
  return bytes;
}

bool ReadPrefixCoded(Levels levels, int number, std::span<const uint8_t> in,
                     uint8_t* codes, size_t elements) {
  const Tables& tables = TablesOf(levels, number);
  if (in.size() < kSizesBytes) return false;
  Reader readers[kStreams];
  size_t at = kSizesBytes;
  for (size_t s = 0; s < kStreams; ++s) {
    uint16_t stated;
    if (s + 1 < kStreams) std::memcpy(&stated, in.data() + 2 * s, 2);
    const size_t size = s + 1 < kStreams ? stated : in.size() - at;
    if (size > in.size() - at) return false;
    readers[s] = {in.data() + at, in.data() + at + size,
                  codes + Begin(s, elements), codes + Begin(s + 1, elements)};
    at += size;
  }
  return ReadTwo(tables, readers[0], readers[1]) &&
         ReadTwo(tables, readers[2], readers[3]);
}

}  // namespace pactrain::kernels::levels
