// What must hold whatever breaks: told of everything that trainers see, it
// fails the run at the first thing that no correct system would show.
#ifndef PACTRAIN_TESTS_SIM_ORACLE_H_
#define PACTRAIN_TESTS_SIM_ORACLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/types.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"

namespace pactrain::sim {

// What a rank has made of the steps it applied; `chain` is a hash of them all.
struct RankState {
  uint64_t chain = 0;
  int applied = 0;
  int mask_epoch = 0;
  uint64_t lineage = 0;  // The one that began it without a donor, as below.
};

class Oracle {
 public:
  Oracle(World* world, const Workload* workload)
      : world_(world), workload_(workload) {}

  // A coordinator has formed it. Those of two copies of the journal may give
  // one number out twice, so each has an id of its own here: 1, 2, 3, ...
  void Formed(const protocol::Generation& generation);
  // A process is told of it; returns its id, which the calls below call
  // `generation`. Its numbers never go back, first steps are never ones that
  // were used.
  uint64_t Attached(uint64_t process, const protocol::Digest& attach_id,
                    uint32_t rank, uint64_t number, uint64_t base_step,
                    uint32_t world_size);
  // A rank opens a step: all that open it do so under one decision.
  void Opened(uint32_t rank, uint64_t generation, uint64_t step,
              uint64_t decision, const Contribution& contribution);

  // One bucket of a result as it lies in the result region.
  struct Bucket {
    const float* data = nullptr;
    std::vector<uint64_t> elements;  // Which ones, over all buckets.
    int levels = 0;                  // Of the codec; 0: exact.
  };
  // `state` stands for what the rank has made of all steps before this one.
  void Committed(uint32_t rank, uint64_t generation, uint64_t step,
                 uint64_t next_decision, uint64_t state,
                 const std::vector<Bucket>& buckets);
  void NotApplied(uint32_t rank, uint64_t generation, uint64_t step);

  uint64_t commits() const { return committed_; }
  uint64_t deliveries() const { return deliveries_; }
  uint64_t newest_committed() const { return newest_committed_; }

 private:
  struct Step {
    uint64_t generation = 0;
    uint64_t decision = 0;
    std::map<uint32_t, Contribution> contributions;
    std::set<uint32_t> committed;
    std::set<uint32_t> not_applied;
    uint64_t next_decision = 0;
    uint64_t state = 0;
    protocol::Digest result;
  };
  struct Generation {
    uint64_t base_step = 0;
    uint32_t world_size = 0;
    bool begun = false;
  };

  // Nothing that a rank contributed lies outside of what came back.
  void CheckWhole(uint64_t generation, uint64_t number, const Step& step,
                  const std::vector<Bucket>& buckets);
  void CheckValues(uint64_t generation, uint64_t number, const Step& step,
                   const std::vector<Bucket>& buckets);
  // Of a bucket in n levels: as near to the sum as the codec brings it, which a
  // missing or double contribution does not.
  void CheckNear(uint64_t generation, uint64_t number, const Step& step,
                 const Bucket& bucket);
  void Fail(uint32_t rank, uint64_t step, const std::string& what);

  World* const world_;
  const Workload* const workload_;
  std::map<uint64_t, Step> steps_;  // By number: used in one generation only.
  std::map<uint64_t, Generation> generations_;
  // By number and attach: the newest one that was formed.
  std::map<std::pair<uint64_t, protocol::Digest>, uint64_t> formed_;
  std::map<uint64_t, uint64_t> newest_of_process_;
  uint64_t newest_generation_ = 0;
  uint64_t newest_committed_ = 0;
  uint64_t committed_ = 0;
  uint64_t deliveries_ = 0;
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_ORACLE_H_
