// How the vector variants compact and expand: by whole words of the mask, 64
// elements each. Here is what does not depend on the instruction set: the walk
// over tiles, the edges of a range, tiles that keep little, and whether results
// go past the caches. An instruction set brings its loops over whole words.
// Contracts are in compact.h and expand.h.
//
// Sparse tiles are gathered by the places of what they keep: what is read is
// then only the cache lines that hold a kept element, and not a bucket. Of the
// time of vectors, which ask for memory ahead (kAhead), of AVX2 and AVX-512
// alike, by places took 1.5 at keep 0.05, 1.15 at 0.03, 0.9 at 0.02, 0.5 at
// 0.01 and 0.02 at 0.001 (24 Mi elements, Zen 4). Going through the bits of the
// mask instead took 1.0 at 0.01 and 0.9 at 0.001. AVX2's instruction that
// gathers eight took three quarters of that again, but microcode slows it on
// Intel's CPUs of 2015 to 2021 (Gather Data Sampling).
//
// Pure. Used by the variants only.
#ifndef PACTRAIN_KERNELS_WORDS_H_
#define PACTRAIN_KERNELS_WORDS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/mask_plan.h"

namespace pactrain::kernels::words {

inline constexpr size_t kWord = 64;  // Elements.
// An expansion that writes at least this much does it with non-temporal stores:
// its beginning would leave the caches before its end is there, and a plain
// store reads what it overwrites. Measured: at 16 MiB, expanding and then
// reading the result took as long either way, at 32 MiB 0.8 to 0.9.
inline constexpr size_t kStreamBytes = 32 << 20;
inline constexpr size_t kStreamAlignment = 64;

// Whole buckets, and the words of their mask.
struct Buffers {
  const uint64_t* words;
  const float* in;
  float* out;
};

// Words that are packed one after the other: the next of them, where its packed
// elements go, and where those of the whole run end.
struct Run {
  size_t word;
  size_t packed;
  size_t end_packed;
};

// How far ahead of its reads a compaction asks for memory, in elements. A core
// that reads one place alone waits for memory, and each page of 4 KiB starts
// the processor's own prefetching anew. On Zen 4, at keep 0.5 and 0.1, 512 took
// 0.8 and 0.7 of the time of 256, and 2048 as long as 512. To read four places
// in turn, which helped where nothing was asked for, took 1.3 and 1.5 of it.
inline constexpr size_t kAhead = 512;

// Packs the next `words` whole words of the run and moves it on. Writes nothing
// from end_packed on. Adds what is not zero outside the mask to *outside if it
// counts.
using PackWords = void(const Buffers& buffers, Run* run, size_t words,
                       uint64_t* outside);

// Of an expansion: the next word of the mask, and the next packed element.
struct Place {
  size_t word;
  size_t packed;
};

// Expands words from `at` on, up to limit.word but only while 64 packed
// elements are left before limit.packed: so it may read 64 at a time. Returns
// where it stopped.
using SpreadWords = Place(const Buffers& buffers, Place at, Place limit,
                          float divisor);
// Counts in words [first, end).
using CountWords = uint64_t(const Buffers& buffers, size_t first, size_t end);

void Compact(PackWords* pack, const MaskPlan& plan, TileRange tiles,
             const float* in, float* out);
// `pack` counts.
uint64_t CompactAndCount(PackWords* pack, const MaskPlan& plan, TileRange tiles,
                         const float* in, float* out);
uint64_t CountOutside(CountWords* count, const MaskPlan& plan, TileRange tiles,
                      const float* in);

// `stream` writes past the caches, and ends with a fence: what is written after
// it is seen after it. `out` is a multiple of kStreamAlignment.
struct Spreaders {
  SpreadWords* spread;
  SpreadWords* stream;
};
// Bits as they are.
void Expand(const Spreaders& spreaders, const MaskPlan& plan, TileRange tiles,
            const float* in, float* out);
void ExpandDivide(const Spreaders& spreaders, const MaskPlan& plan,
                  TileRange tiles, const float* in, float divisor, float* out);

}  // namespace pactrain::kernels::words

#endif  // PACTRAIN_KERNELS_WORDS_H_
