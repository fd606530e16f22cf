#include "trainer/core/mask_sets.h"

#include <algorithm>
#include <utility>

namespace pactrain::trainer {

void MaskSets::Add(MaskSet set) {
  MaskSet merged;
  merged.mask_digest = set.mask_digest;
  const auto known =
      std::find_if(sets_.begin(), sets_.end(), [&](const MaskSet& old) {
        return Same(old.mask_digest, set.mask_digest);
      });
  if (known != sets_.end()) {
    merged = std::move(*known);
    sets_.erase(known);
  }
  const size_t end = set.first_bucket + set.buckets.size();
  if (merged.buckets.size() < end) merged.buckets.resize(end);
  std::move(set.buckets.begin(), set.buckets.end(),
            merged.buckets.begin() + set.first_bucket);
  sets_.push_front(std::move(merged));
  if (sets_.size() > kMaxSets) sets_.pop_back();
}

std::shared_ptr<const kernels::MaskPlan> MaskSets::Find(
    const wire::Digest128& mask_digest, uint32_t index,
    const wire::Digest128& bucket_layout, uint64_t elements) const {
  for (const MaskSet& set : sets_) {
    if (!Same(set.mask_digest, mask_digest)) continue;
    if (index >= set.buckets.size()) return nullptr;
    const MaskSet::BucketMask& bucket = set.buckets[index];
    const bool known = bucket.plan != nullptr &&
                       Same(bucket.layout, bucket_layout) &&
                       bucket.plan->elements() == elements;
    return known ? bucket.plan : nullptr;
  }
  return nullptr;
}

}  // namespace pactrain::trainer
