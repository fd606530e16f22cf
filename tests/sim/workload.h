// What the ranks of a job train: buckets, masks and gradients, all by hashes of
// the seed, so that every expected sum can be computed anew.
//
// Gradients are small integers: sums are exact in fp32 and in bf16, and a
// missing or double contribution shows in the result.
#ifndef PACTRAIN_TESTS_SIM_WORKLOAD_H_
#define PACTRAIN_TESTS_SIM_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/types.h"
#include "tests/sim/random.h"
#include "trainer/core/mask_sets.h"
#include "trainer/core/trainer_state.h"

namespace pactrain::sim {

// How one rank takes part in one step.
struct Contribution {
  int layout = 0;
  int mask_epoch = 0;       // Its gradient is zero outside this mask set,
  bool noise = false;       // but for one element.
  bool gse = true;          // What lies outside is masked, not sent.
  uint64_t parameters = 0;  // 0: no digest of the parameters in this step.
  // The step is an exchange of trainer/core/membership: what this rank says.
  // Null: it is one of gradients.
  std::shared_ptr<const std::vector<float>> message;
};

class Workload {
 public:
  Workload(uint64_t seed, uint32_t world_size);

  uint32_t world_size() const { return world_size_; }
  uint64_t elements() const { return elements_; }
  size_t buckets(int layout) const { return sizes_[layout].size(); }
  uint64_t bucket_elements(int layout, size_t bucket) const {
    return sizes_[layout][bucket];
  }
  wire::Digest128 BucketLayout(int layout, size_t bucket) const;
  wire::Digest128 LayoutDigest(int layout) const;
  wire::Digest128 MaskDigest(int epoch) const;
  // A later epoch keeps a subset of what an earlier one keeps.
  bool Kept(int epoch, uint64_t element) const;
  trainer::MaskSet MakeMaskSet(int epoch) const;  // For layout 0.
  uint64_t KeptElements(int epoch) const;

  // As all ranks attach.
  bool declares() const { return Hash({seed_, 12}) % 2 == 0; }
  uint32_t activate_every() const {
    return static_cast<uint32_t>(Hash({seed_, 13}) % 5);
  }

  // What all ranks do in a step, unless a fault lets one do otherwise.
  int LayoutOf(uint64_t step) const;
  bool IsXor(uint64_t step, const Contribution& contribution) const {
    return contribution.message != nullptr || Hash({seed_, 5, step}) % 7 == 0;
  }
  bool HasParameters(uint64_t step) const {
    return Hash({seed_, 6, step}) % 3 == 0;
  }

  // The 32 bits that `rank` puts at `element` (counted over the buckets).
  float Value(uint32_t rank, uint64_t generation, uint64_t step,
              const Contribution& contribution, uint64_t element) const;
  std::vector<float> BucketData(uint32_t rank, uint64_t generation,
                                uint64_t step, const Contribution& contribution,
                                size_t bucket) const;
  uint64_t BucketStart(int layout, size_t bucket) const;

 private:
  const uint64_t seed_;
  const uint32_t world_size_;
  uint64_t elements_ = 0;
  std::vector<uint64_t> sizes_[2];  // By layout.
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_WORKLOAD_H_
