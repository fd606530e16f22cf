#include "trainer/core/mask_sets.h"

#include <utility>

namespace pactrain::trainer {

void MaskSets::Add(MaskSet set) {
  std::erase_if(sets_, [&](const MaskSet& old) {
    return Same(old.mask_digest, set.mask_digest) &&
           Same(old.layout_digest, set.layout_digest);
  });
  sets_.push_front(std::move(set));
  if (sets_.size() > kMaxSets) sets_.pop_back();
}

std::shared_ptr<const kernels::MaskPlan> MaskSets::Find(
    const wire::Digest128& mask_digest, const wire::Digest128& layout_digest,
    uint32_t index, const wire::Digest128& bucket_layout,
    uint64_t elements) const {
  for (const MaskSet& set : sets_) {
    if (!Same(set.mask_digest, mask_digest) ||
        !Same(set.layout_digest, layout_digest)) {
      continue;
    }
    if (index >= set.buckets.size()) return nullptr;
    const MaskSet::BucketMask& bucket = set.buckets[index];
    const bool known = Same(bucket.layout, bucket_layout) &&
                       bucket.plan->elements() == elements;
    return known ? bucket.plan : nullptr;
  }
  return nullptr;
}

}  // namespace pactrain::trainer
