#include "tests/sim/workload.h"

#include <bit>
#include <utility>

namespace pactrain::sim {

Workload::Workload(uint64_t seed, uint32_t world_size)
    : seed_(seed), world_size_(world_size) {
  constexpr uint64_t kSizes[] = {1, 7, 64, 300, 2100};
  Random random(Hash({seed, 1}));
  const uint64_t buckets = 1 + random.Below(3);
  for (uint64_t b = 0; b < buckets; ++b) {
    sizes_[0].push_back(kSizes[random.Below(5)]);
    elements_ += sizes_[0].back();
  }
  sizes_[1] = {elements_ - elements_ / 2, elements_ / 2};
}

wire::Digest128 Workload::BucketLayout(int layout, size_t bucket) const {
  return {Hash({seed_, 2, static_cast<uint64_t>(layout), bucket}), 1};
}

wire::Digest128 Workload::LayoutDigest(int layout) const {
  return {Hash({seed_, 3, static_cast<uint64_t>(layout)}), 1};
}

wire::Digest128 Workload::MaskDigest(int epoch) const {
  return {Hash({seed_, 4, static_cast<uint64_t>(epoch)}), 1};
}

bool Workload::Kept(int epoch, uint64_t element) const {
  const uint64_t threshold = epoch < 8 ? 6 - epoch / 2 : 2;
  return Hash({seed_, 7, element}) % 10 < threshold;
}

uint64_t Workload::KeptElements(int epoch) const {
  uint64_t kept = 0;
  for (uint64_t e = 0; e < elements_; ++e) kept += Kept(epoch, e);
  return kept;
}

uint64_t Workload::BucketStart(int layout, size_t bucket) const {
  uint64_t start = 0;
  for (size_t b = 0; b < bucket; ++b) start += sizes_[layout][b];
  return start;
}

trainer::MaskSet Workload::MakeMaskSet(int epoch) const {
  trainer::MaskSet set;
  set.mask_digest = MaskDigest(epoch);
  uint64_t element = 0;
  for (size_t b = 0; b < sizes_[0].size(); ++b) {
    const uint64_t size = sizes_[0][b];
    std::vector<uint8_t> bitmap((size + 7) / 8);
    for (uint64_t i = 0; i < size; ++i, ++element) {
      if (Kept(epoch, element)) bitmap[i / 8] |= 1 << (i % 8);
    }
    set.buckets.push_back(
        {BucketLayout(0, b),
         std::make_shared<const kernels::MaskPlan>(bitmap.data(), size)});
  }
  return set;
}

int Workload::LayoutOf(uint64_t step) const {
  return Hash({seed_, 8, step / 4}) % 4 == 0 ? 1 : 0;
}

float Workload::Value(uint32_t rank, uint64_t generation, uint64_t step,
                      const Contribution& contribution,
                      uint64_t element) const {
  if (contribution.message != nullptr) return contribution.message->at(element);
  const uint64_t hash = Hash({seed_, 9, rank, generation, step, element});
  if (IsXor(step, contribution)) {
    const bool root = rank == Hash({seed_, 10, step}) % world_size_;
    return std::bit_cast<float>(root ? static_cast<uint32_t>(hash) : 0u);
  }
  const bool noisy =
      contribution.noise && element == Hash({seed_, 11, step}) % elements_;
  if (!noisy && !Kept(contribution.mask_epoch, element)) return 0;
  return static_cast<float>(static_cast<int>(hash % 15) - 7);
}

std::vector<float> Workload::BucketData(uint32_t rank, uint64_t generation,
                                        uint64_t step,
                                        const Contribution& contribution,
                                        size_t bucket) const {
  if (contribution.message != nullptr) return *contribution.message;
  std::vector<float> data(sizes_[contribution.layout][bucket]);
  const uint64_t start = BucketStart(contribution.layout, bucket);
  for (uint64_t i = 0; i < data.size(); ++i) {
    data[i] = Value(rank, generation, step, contribution, start + i);
  }
  return data;
}

}  // namespace pactrain::sim
