// Runs many seeds of the simulator: //tests/sim:sim --seeds=N [--first-seed=N];
// --seed=N replays one and prints the hash of its trace.
// Failing seeds go to stderr, a summary as one JSON object to stdout.
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "tests/sim/simulator.h"

int main(int argc, char** argv) {
  uint64_t seeds = 2000;
  uint64_t first_seed = 1;
  bool verbose = false;
  int mutant = 0;
  CLI::App app("Whole-system simulator; every seed is one run.");
  app.add_option("--seeds", seeds, "How many");
  app.add_option("--first-seed", first_seed, "The first of them");
  CLI::Option* const replay =
      app.add_option("--seed", first_seed, "Replay this one alone");
  app.add_flag("--verbose", verbose, "Tell what happens");
  app.add_option("--mutant", mutant, "Break a rule on purpose (mutant.h)")
      ->check(CLI::Range(0, 5));
  CLI11_PARSE(app, argc, argv);
  if (*replay) seeds = 1;

  uint64_t failed = 0, steps = 0, commits = 0;
  std::map<std::string, uint64_t> faults;
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    pactrain::sim::RunOptions options;
    options.seed = seed;
    options.verbose = verbose;
    options.mutant = static_cast<pactrain::sim::Mutant>(mutant);
    const pactrain::sim::RunResult result = pactrain::sim::RunSeed(options);
    steps += result.steps;
    commits += result.commits;
    for (const auto& [kind, count] : result.faults) faults[kind] += count;
    if (verbose || *replay) {
      std::fprintf(stderr, "seed %llu: trace %016llx\n",
                   static_cast<unsigned long long>(seed),
                   static_cast<unsigned long long>(result.trace));
    }
    if (result.failure.empty()) continue;
    ++failed;
    std::fprintf(stderr,
                 "seed %llu failed %s\n  replay: sim --seed=%llu"
                 " --verbose\n",
                 static_cast<unsigned long long>(seed), result.failure.c_str(),
                 static_cast<unsigned long long>(seed));
  }
  std::string kinds;
  for (const auto& [kind, count] : faults) {
    kinds +=
        (kinds.empty() ? "\"" : ", \"") + kind + "\": " + std::to_string(count);
  }
  std::printf(
      "{\"seeds\": %llu, \"failed\": %llu, \"steps\": %llu, "
      "\"commits\": %llu, \"faults\": {%s}}\n",
      static_cast<unsigned long long>(seeds),
      static_cast<unsigned long long>(failed),
      static_cast<unsigned long long>(steps),
      static_cast<unsigned long long>(commits), kinds.c_str());
  return failed == 0 ? 0 : 1;
}
