// The newest mask sets of a session, by mask digest.
//
// Buckets of a set may be added bit by bit, and anew where the layout of one
// has changed: what a bucket's layout digest stands for says which bits are
// its.
//
// Invariant: at most kMaxSets sets of at most kMaxBuckets buckets each; a set
// added to becomes the newest.
//
// Pure. Thread-compatible; the plans themselves are immutable and shared.
#ifndef PACTRAIN_TRAINER_CORE_MASK_SETS_H_
#define PACTRAIN_TRAINER_CORE_MASK_SETS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/mask_plan.h"
#include "trainer/wire.h"

namespace pactrain::trainer {

inline constexpr uint32_t kMaxBuckets = 4096;  // As protocol/limits.h.
inline constexpr uint64_t kMaxElements = (1ull << 31) - 1;

inline bool Same(const wire::Digest128& a, const wire::Digest128& b) {
  return a.hi == b.hi && a.lo == b.lo;
}

// The masks of some buckets.
struct MaskSet {
  struct BucketMask {
    wire::Digest128 layout = {};
    std::shared_ptr<const kernels::MaskPlan> plan;
  };
  wire::Digest128 mask_digest = {};
  uint32_t first_bucket = 0;  // The index of the first one here.
  std::vector<BucketMask> buckets;
};

class MaskSets {
 public:
  static constexpr size_t kMaxSets = 4;

  // REQUIRES: first_bucket + buckets.size() <= kMaxBuckets. Drops the oldest
  // set when there are more than kMaxSets.
  void Add(MaskSet set);

  // The mask of bucket `index` if the set is known and that bucket has the
  // given layout digest and number of elements there; else null.
  std::shared_ptr<const kernels::MaskPlan> Find(
      const wire::Digest128& mask_digest, uint32_t index,
      const wire::Digest128& bucket_layout, uint64_t elements) const;

 private:
  std::deque<MaskSet> sets_;  // Newest first; each from bucket 0 on.
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_MASK_SETS_H_
