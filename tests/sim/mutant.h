// Rules that can be broken on purpose, to show that the simulator would notice.
#ifndef PACTRAIN_TESTS_SIM_MUTANT_H_
#define PACTRAIN_TESTS_SIM_MUTANT_H_

namespace pactrain::sim {

enum class Mutant {
  kNone,
  // An agent hands results out on its own vote alone.
  kDeliverWithoutVotes,
  // An agent takes an abort for a vote like its own.
  kTakeAbortsForVotes,
  // The coordinator forgets its journal in a crash.
  kForgetJournal,
  // The exchange loses a contribution: a member's frames count as zeros.
  kLoseContribution,
  // A rank that needs the state keeps its own.
  kKeepOwnState,
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_MUTANT_H_
