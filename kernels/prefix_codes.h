// Prefix codes for the codes of the n-level codec: gradients are mostly small,
// so the codes around zero get few bits. Used by levels.cc and its tests only.
//
// For each number of levels there are a few fixed prefix codes, numbered from
// 1, each made for another shape of the values (D. A. Huffman, 1952): from even
// ones to long tails and mostly zeros. None has words of more than kMaxWordBits
// bits, and all are complete: any bits are words.
//
// The coded form of n codes: three uint16, little-endian, the bytes of the
// first three of four streams; then the streams. Stream s holds the words of
// the codes [s Q, min((s + 1) Q, n)), Q = ceil(n / 4), one after the other from
// the lowest bit of its first byte on, and zeros up to its last byte's end. A
// core works on two streams at a time, which do not wait for each other; one
// with more registers could on four.
//
// Pure. Thread-safe.
#ifndef PACTRAIN_KERNELS_PREFIX_CODES_H_
#define PACTRAIN_KERNELS_PREFIX_CODES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/levels.h"

namespace pactrain::kernels::levels {

inline constexpr int kMaxWordBits = 11;

int PrefixCodeCount(Levels levels);
// Bits of a code's word. `number` from 1 to the count, here and below.
int WordBits(Levels levels, int number, uint8_t code);

// The number of one that is short for `codes`: of the least bits for a sample
// of them. `elements` >= 1.
int ChoosePrefixCode(Levels levels, const uint8_t* codes, size_t elements);

// Writes the coded form and returns its bytes; 0: it takes more than `most`,
// and out[0, most) is of no meaning. `elements` <= kMaxLevelsElements.
size_t WritePrefixCoded(Levels levels, int number, const uint8_t* codes,
                        size_t elements, uint8_t* out, size_t most);
// Fills `codes`. False: `in` is not what is written of so many codes.
bool ReadPrefixCoded(Levels levels, int number, std::span<const uint8_t> in,
                     uint8_t* codes, size_t elements);

}  // namespace pactrain::kernels::levels

#endif  // PACTRAIN_KERNELS_PREFIX_CODES_H_
