// Which parameters share a bucket, and in which order buckets are submitted.
//
// The rule is that of the Python client (buckets.py, which says why), so that
// C++ and Python trainers of one job have the same layout:
//
// 1. Parameters that need a gradient and have elements are taken in
//    registration order. Each dtype has one open bucket. A parameter goes into
//    it, unless it would then hold more than the cap: then that bucket is
//    closed, and the parameter opens another.
// 2. Buckets are numbered by their first parameter, the one registered last
//    first.
// 3. In a bucket its parameters lie in registration order without gaps.
//
// testdata/buckets.txt holds both languages to it.
#ifndef PACTRAIN_TRAINER_CPP_BUCKETS_H_
#define PACTRAIN_TRAINER_CPP_BUCKETS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "trainer/cpp/types.h"

namespace pactrain {

// One parameter, as far as the plan needs it.
struct Piece {
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;
};

// `parameters` are indices into what was planned, ascending.
struct PlannedBucket {
  std::vector<size_t> parameters = {};
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;
};

// The buckets in the order of their numbers.
inline std::vector<PlannedBucket> PlanBuckets(const std::vector<Piece>& pieces,
                                              uint64_t cap_bytes) {
  std::vector<PlannedBucket> buckets;
  std::map<DType, size_t> opened;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto [elements, dtype] = pieces[i];
    if (elements == 0) continue;
    const uint64_t bytes_each = dtype == DType::kBfloat16 ? 2 : 4;
    const auto open = opened.find(dtype);
    if (open == opened.end() ||
        (buckets[open->second].elements + elements) * bytes_each > cap_bytes) {
      opened[dtype] = buckets.size();
      buckets.push_back({.dtype = dtype});
    }
    PlannedBucket& bucket = buckets[opened[dtype]];
    bucket.parameters.push_back(i);
    bucket.elements += elements;
  }
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_BUCKETS_H_
