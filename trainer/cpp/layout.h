// Layouts: which parameters each bucket of a model holds, with their digests.
#ifndef PACTRAIN_TRAINER_CPP_LAYOUT_H_
#define PACTRAIN_TRAINER_CPP_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/buckets.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/types.h"

namespace pactrain {

// Indices into the ParameterTable. Equal on ranks with equal digest.
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
    std::vector<Piece> pieces;
    for (size_t i = 0; i < table.size(); ++i) {
      pieces.push_back({table[i].elements(), table[i].dtype});
    }
    std::string digests;
    for (PlannedBucket& bucket : PlanBuckets(pieces, cap_bytes)) {
      const Digest digest = DigestOfBucket(table, bucket);
      digests += digest.ToBytes();
      buckets_.push_back({.parameters = std::move(bucket.parameters),
                          .dtype = bucket.dtype,
                          .elements = bucket.elements,
                          .digest = digest});
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
                               const PlannedBucket& bucket) {
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

#endif  // PACTRAIN_TRAINER_CPP_LAYOUT_H_
