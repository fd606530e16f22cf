// A whole system from one seed: a coordinator, agents in sites, the trainers of
// one job, a network, a disk, and faults. Equal seeds give equal runs.
//
// A run succeeds if nothing that the oracle watches is violated and, once the
// faults stop, one launch of the job commits all its steps at every rank.
#ifndef PACTRAIN_TESTS_SIM_SIMULATOR_H_
#define PACTRAIN_TESTS_SIM_SIMULATOR_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/sim/mutant.h"

namespace pactrain::sim {

struct RunOptions {
  uint64_t seed = 0;
  bool verbose = false;
  Mutant mutant = Mutant::kNone;
};

struct RunResult {
  std::string failure;   // Empty: good.
  uint64_t trace = 0;    // Over everything that happened, in order.
  uint64_t steps = 0;    // Results delivered, over all ranks.
  uint64_t commits = 0;  // Steps committed.
  std::map<std::string, uint64_t> faults;
};

RunResult RunSeed(const RunOptions& options);

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_SIMULATOR_H_
