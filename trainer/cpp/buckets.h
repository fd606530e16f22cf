// Layouts: which parameters share a bucket, and in which order buckets are
// submitted; with their digests.
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
#include <string>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/types.h"

namespace pactrain {

// Indices into the ParameterTable, ascending. Equal on ranks with equal digest.
struct BucketLayout {
  std::vector<size_t> parameters = {};
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  Digest digest = {};
};

// The buckets of a step, in order; digest() stands for all of them.
class Layout {
 public:
  static constexpr size_t kMaxBuckets = 4096;  // protocol/limits.h

  // Buckets hold at most `cap_bytes`, or one parameter.
  // InvalidArgument: they would be too many.
  Layout(const ParameterTable& table, uint64_t cap_bytes) {
    std::map<DType, size_t> opened;
    for (size_t i = 0; i < table.size(); ++i) {
      const DType dtype = table[i].dtype;
      const uint64_t elements = table[i].elements();
      if (elements == 0) continue;
      const uint64_t bytes_each = dtype == DType::kBfloat16 ? 2 : 4;
      const auto open = opened.find(dtype);
      if (open == opened.end() ||
          (buckets_[open->second].elements + elements) * bytes_each >
              cap_bytes) {
        opened[dtype] = buckets_.size();
        buckets_.push_back({.dtype = dtype});
      }
      BucketLayout& bucket = buckets_[opened[dtype]];
      bucket.parameters.push_back(i);
      bucket.elements += elements;
    }
    std::reverse(buckets_.begin(), buckets_.end());
    std::string digests;
    for (BucketLayout& bucket : buckets_) {
      bucket.digest = DigestOfBucket(table, bucket);
      digests += bucket.digest.ToBytes();
    }
    digest_ = DigestOf(digests);
    if (buckets_.size() > kMaxBuckets) {
      throw InvalidArgument(
          "bucket_bytes is " + std::to_string(cap_bytes) + ", which gives " +
          std::to_string(buckets_.size()) + " buckets; allowed are 1 to " +
          std::to_string(kMaxBuckets) + ".\nGive a larger one.");
    }
  }

  const std::vector<BucketLayout>& buckets() const { return buckets_; }
  const Digest& digest() const { return digest_; }

 private:
  static Digest DigestOfBucket(const ParameterTable& table,
                               const BucketLayout& bucket) {
    std::string text = internal::DTypeName(bucket.dtype) + " " +
                       std::to_string(bucket.elements);
    for (const size_t i : bucket.parameters) {
      text += "\n" + internal::ShapeText(table[i]);
    }
    return DigestOf(text);
  }

  std::vector<BucketLayout> buckets_;
  Digest digest_;
};

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_BUCKETS_H_
