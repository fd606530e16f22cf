// The system from seeds: right whatever breaks, alive once it stops breaking. A
// failing seed is named; `sim --seed=N --verbose` replays it.
#include "gtest/gtest.h"
#include "tests/sim/simulator.h"

namespace pactrain::sim {
namespace {

constexpr uint64_t kSeeds = 2000;

TEST(Simulator, EverySeedKeepsThePromises) {
  uint64_t commits = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const RunResult result = RunSeed({.seed = seed});
    commits += result.commits;
    EXPECT_EQ(result.failure, "") << "seed " << seed;
  }
  EXPECT_GT(commits, kSeeds * 4);
}

TEST(Simulator, ASeedReplaysExactly) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(RunSeed({.seed = seed}).trace, RunSeed({.seed = seed}).trace);
  }
}

// A broken rule is found within a few hundred seeds, or the simulator is blind.
class BrokenRule : public testing::TestWithParam<Mutant> {};

TEST_P(BrokenRule, IsNoticed) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    if (!RunSeed({.seed = seed, .mutant = GetParam()}).failure.empty()) return;
  }
  FAIL() << "no seed noticed";
}

INSTANTIATE_TEST_SUITE_P(Mutants, BrokenRule,
                         testing::Values(Mutant::kDeliverWithoutVotes,
                                         Mutant::kTakeAbortsForVotes,
                                         Mutant::kForgetJournal,
                                         Mutant::kLoseContribution,
                                         Mutant::kKeepOwnState));

}  // namespace
}  // namespace pactrain::sim
