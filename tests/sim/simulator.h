// A whole system from one seed: a coordinator, agents in sites, the trainers of
// one job, a network, a disk, and faults. Equal seeds give equal runs.
//
// A run succeeds if nothing that the oracle and the wardens of the state
// (simulation_state.cc) watch is violated and, once the faults stop, one launch
// of the job commits all its steps at every rank. Each seed switches a random
// half of the kinds of faults off, so that rare combinations come up.
#ifndef PACTRAIN_TESTS_SIM_SIMULATOR_H_
#define PACTRAIN_TESTS_SIM_SIMULATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "tests/sim/mutant.h"

namespace pactrain::sim {

struct RunOptions {
  uint64_t seed = 0;
  // Hears what happens, line by line. Null: nobody does.
  std::function<void(const std::string&)> tell = {};
  Mutant mutant = Mutant::kNone;
};

struct RunResult {
  std::string failure;   // Empty: good.
  uint64_t trace = 0;    // Over everything that happened, in order.
  uint64_t steps = 0;    // Results delivered, over all ranks.
  uint64_t commits = 0;  // Steps committed.
  // How often each kind of fault befell the run; all kinds are named.
  std::map<std::string, uint64_t> faults;
};

RunResult RunSeed(const RunOptions& options);

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_SIMULATOR_H_
