#include "tests/sim/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"

namespace pactrain::sim {
namespace {

constexpr double kMaxSites = 3;

}  // namespace

void Oracle::Fail(uint32_t rank, uint64_t step, const std::string& what) {
  world_->Fail(absl::StrFormat("rank %d, step %d: %s", rank, step, what));
}

void Oracle::Formed(const protocol::Generation& generation) {
  const uint64_t own = generations_.size() + 1;
  generations_[own] = {generation.base_step, generation.world_size};
  for (const protocol::Member& member : generation.members) {
    for (const protocol::Digest& attach_id : member.attach_ids) {
      formed_[{generation.number, attach_id}] = own;
    }
  }
}

uint64_t Oracle::Attached(uint64_t process, const protocol::Digest& attach_id,
                          uint32_t rank, uint64_t number, uint64_t base_step,
                          uint32_t world_size) {
  const auto formed = formed_.find({number, attach_id});
  if (formed == formed_.end()) {
    Fail(rank, base_step,
         absl::StrFormat("generation %d has no place for it", number));
    return 0;
  }
  // Others may hear of a later one before.
  uint64_t& newest = newest_of_process_[process];
  if (number <= newest) {
    Fail(rank, base_step,
         absl::StrFormat("generation %d after %d", number, newest));
  }
  newest = number;
  Generation& generation = generations_[formed->second];
  if (generation.base_step != base_step) {
    Fail(rank, base_step, "begins at another step than its generation");
  }
  if (generation.world_size != world_size || rank >= world_size) {
    Fail(rank, base_step, "counts the ranks of its generation otherwise");
  }
  newest_generation_ = std::max(newest_generation_, formed->second);
  if (!std::exchange(generation.begun, true) &&
      formed->second == newest_generation_ && committed_ > 0 &&
      base_step <= newest_committed_) {
    Fail(rank, base_step,
         absl::StrFormat("the generation begins at a step up to %d, which was "
                         "committed before",
                         newest_committed_));
  }
  return formed->second;
}

void Oracle::Opened(uint32_t rank, uint64_t generation, uint64_t number,
                    uint64_t decision, const Contribution& contribution) {
  Step& step = steps_[number];
  // One that was stopped does not know yet that its generation is over.
  if (step.generation > generation && world_->any_stopped) return;
  if (step.generation != generation) {
    if (!step.committed.empty()) {
      Fail(rank, number, "opened again after it was committed");
    }
    step = {};
    step.generation = generation;
    step.decision = decision;
  }
  if (step.decision != decision) {
    Fail(rank, number,
         absl::StrFormat("opened under decision %d, elsewhere under %d",
                         decision, step.decision));
  }
  step.contributions[rank] = contribution;
}

void Oracle::NotApplied(uint32_t rank, uint64_t generation, uint64_t number) {
  Step& step = steps_[number];
  if (step.generation != generation) return;  // Never opened by anybody.
  if (!step.committed.empty()) {
    Fail(rank, number,
         absl::StrFormat("said not to be applied, rank %d applied it",
                         *step.committed.begin()));
  }
  step.not_applied.insert(rank);
}

void Oracle::Committed(uint32_t rank, uint64_t generation, uint64_t number,
                       uint64_t next_decision, uint64_t state,
                       const std::vector<Bucket>& buckets) {
  ++deliveries_;
  Step& step = steps_[number];
  if (step.generation != generation) {
    return Fail(rank, number,
                absl::StrFormat("applied in generation %d, opened in %d",
                                generation, step.generation));
  }
  if (!step.not_applied.empty()) {
    Fail(rank, number,
         absl::StrFormat("applied, rank %d was told that nobody did",
                         *step.not_applied.begin()));
  }
  if (!step.committed.insert(rank).second) {
    Fail(rank, number, "applied twice");
  }
  base::DigestBuilder digest;
  for (const Bucket& bucket : buckets) {
    digest.Add(bucket.elements.size());
    digest.AddRaw(bucket.data, bucket.elements.size() * 4);
  }
  const protocol::Digest result = digest.Build();
  if (step.committed.size() > 1) {
    if (result != step.result) Fail(rank, number, "results differ");
    if (state != step.state) {
      Fail(rank, number, "applied to another state than elsewhere");
    }
    if (next_decision != step.next_decision) {
      Fail(rank, number,
           absl::StrFormat("decision %d is next, elsewhere %d", next_decision,
                           step.next_decision));
    }
    return;
  }
  // The others went on without one that was stopped as it was about to know.
  if (committed_ > 0 && number <= newest_committed_ && !world_->any_stopped) {
    Fail(rank, number,
         absl::StrFormat("committed after step %d", newest_committed_));
  }
  ++committed_;
  newest_committed_ = std::max(newest_committed_, number);
  step.result = result;
  step.next_decision = next_decision;
  step.state = state;
  CheckValues(generation, number, step, buckets);
}

void Oracle::CheckValues(uint64_t generation, uint64_t number, const Step& step,
                         const std::vector<Bucket>& buckets) {
  if (step.contributions.size() != generations_[generation].world_size) {
    Fail(0, number, "committed before all ranks opened it");
    return;
  }
  const Contribution& first = step.contributions.begin()->second;
  for (const auto& [rank, contribution] : step.contributions) {
    if (contribution.layout != first.layout) {
      Fail(rank, number, "committed although layouts differ");
    }
    const auto words = [](const Contribution& c) {
      return c.message == nullptr ? 0 : c.message->size();
    };
    if (words(contribution) != words(first)) {
      Fail(rank, number, "committed although not all say as much of the state");
      return;
    }
    if (contribution.parameters != first.parameters) {
      Fail(rank, number, "committed although parameters differ");
    }
  }
  if (!workload_->IsXor(number, first)) {
    CheckWhole(generation, number, step, buckets);
  }
  for (const Bucket& bucket : buckets) {
    if (bucket.levels > 0 && !workload_->IsXor(number, first)) {
      CheckNear(generation, number, step, bucket);
      continue;
    }
    for (size_t i = 0; i < bucket.elements.size(); ++i) {
      const uint64_t element = bucket.elements[i];
      float sum = 0;
      uint32_t bits = 0;
      for (const auto& [rank, contribution] : step.contributions) {
        const float value =
            workload_->Value(rank, generation, number, contribution, element);
        sum += value;
        bits ^= std::bit_cast<uint32_t>(value);
      }
      const bool right = workload_->IsXor(number, first)
                             ? bits == std::bit_cast<uint32_t>(bucket.data[i])
                             : sum == bucket.data[i];
      if (right) continue;
      Fail(0, number,
           absl::StrFormat("element %d is %g, expected %g", element,
                           bucket.data[i], sum));
      return;
    }
  }
}

void Oracle::CheckWhole(uint64_t generation, uint64_t number, const Step& step,
                        const std::vector<Bucket>& buckets) {
  std::vector<bool> there(workload_->elements());
  for (const Bucket& bucket : buckets) {
    for (uint64_t element : bucket.elements) there[element] = true;
  }
  for (const auto& [rank, contribution] : step.contributions) {
    if (contribution.gse) continue;
    for (uint64_t e = 0; e < there.size(); ++e) {
      if (there[e] ||
          workload_->Value(rank, generation, number, contribution, e) == 0) {
        continue;
      }
      Fail(rank, number,
           absl::StrFormat("element %d lies outside the mask and was lost", e));
      return;
    }
  }
}

void Oracle::CheckNear(uint64_t generation, uint64_t number, const Step& step,
                       const Bucket& bucket) {
  double error = 0, largest = 0;
  for (size_t i = 0; i < bucket.elements.size(); ++i) {
    double sum = 0, weight = 0;
    for (const auto& [rank, contribution] : step.contributions) {
      const double value = workload_->Value(rank, generation, number,
                                            contribution, bucket.elements[i]);
      sum += value;
      weight += std::abs(value);
    }
    error += (bucket.data[i] - sum) * (bucket.data[i] - sum);
    largest = std::max(largest, weight);
  }
  // Every encode's error has the variance delta^2 / 12, delta = S / h; at most
  // one encode per site. Few elements may all have bad luck.
  const double delta = 1.01 * largest / ((bucket.levels - 1) / 2);
  const double count = static_cast<double>(bucket.elements.size());
  const double bound = kMaxSites * delta * delta / 12 * (count + 20);
  if (error <= bound) return;
  Fail(0, number,
       absl::StrFormat("the squared error over %d elements in %d levels is %g, "
                       "expected at most %g",
                       bucket.elements.size(), bucket.levels, error, bound));
}

}  // namespace pactrain::sim
