// Follows which elements of an array are not zero, in a bitmap.
//
// One pass reads the array and the bitmap, and writes the bitmap only where it
// has changed. As in compact.h NaN, Inf and denormals are not zero, and -0 is.
//
// `in` needs float alignment only. Thread-safe.
#ifndef PACTRAIN_KERNELS_NONZERO_H_
#define PACTRAIN_KERNELS_NONZERO_H_

#include <cstddef>
#include <cstdint>

namespace pactrain::kernels {

struct ZeroChanges {
  uint64_t gone = 0;  // Elements that have become zero.
  uint64_t back = 0;  // Elements that are zero no more.
};

// Bit i % 64 of words[i / 64] becomes 1 where element i is not zero. Bits after
// the last element become 0. Returns how many bits have changed, each way.
ZeroChanges UpdateNonZero(const float* in, size_t elements, uint64_t* words);

}  // namespace pactrain::kernels

#endif  // PACTRAIN_KERNELS_NONZERO_H_
