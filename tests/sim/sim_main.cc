// Runs many seeds of the simulator on all processors: sim --seeds=N
// [--first-seed=N]; --seed=N replays one and tells all of it.
//
// Of the first failing seeds the end of the story goes to stderr, the whole to
// a file of --stories. The last line of stdout is a summary as one JSON object.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/sim/simulator.h"

namespace {

using pactrain::sim::RunOptions;
using pactrain::sim::RunResult;
using pactrain::sim::RunSeed;
using ULL = unsigned long long;

constexpr size_t kStories = 5;      // Told at length.
constexpr size_t kStoryLines = 60;  // Of each.

struct Settings {
  uint64_t seeds = 2000;
  uint64_t first_seed = 1;
  unsigned threads = 0;
  bool until_violation = false;
  int mutant = 0;
  std::string stories;
};

struct Total {
  std::map<uint64_t, std::string> violations;  // By seed.
  std::map<std::string, uint64_t> faults;
  uint64_t steps = 0, commits = 0, seeds = 0;
};

RunOptions OptionsOf(const Settings& settings, uint64_t seed) {
  RunOptions options;
  options.seed = seed;
  options.mutant = static_cast<pactrain::sim::Mutant>(settings.mutant);
  return options;
}

Total RunAll(const Settings& settings) {
  Total total;
  std::mutex mutex;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> enough{false};
  const auto work = [&] {
    for (uint64_t i = next++; i < settings.seeds && !enough; i = next++) {
      const uint64_t seed = settings.first_seed + i;
      const RunResult result = RunSeed(OptionsOf(settings, seed));
      const std::lock_guard lock(mutex);
      ++total.seeds;
      total.steps += result.steps;
      total.commits += result.commits;
      for (const auto& [kind, count] : result.faults) {
        total.faults[kind] += count;
      }
      if (result.failure.empty()) continue;
      total.violations[seed] = result.failure;
      if (settings.until_violation) enough = true;
    }
  };
  std::vector<std::thread> workers;
  for (unsigned t = 1; t < settings.threads; ++t) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  return total;
}

// Again, with ears.
void TellStory(const Settings& settings, uint64_t seed) {
  std::vector<std::string> lines;
  RunOptions options = OptionsOf(settings, seed);
  options.tell = [&](const std::string& line) { lines.push_back(line); };
  RunSeed(options);
  std::string where;
  if (!settings.stories.empty()) {
    where = settings.stories + "/seed-" + std::to_string(seed) + ".txt";
    std::ofstream file(where);
    for (const std::string& line : lines) file << line << "\n";
  }
  const size_t first = lines.size() - std::min(lines.size(), kStoryLines);
  std::fprintf(stderr, "seed %llu ends so%s%s:\n", static_cast<ULL>(seed),
               where.empty() ? "" : "; all of it is in ", where.c_str());
  for (size_t i = first; i < lines.size(); ++i) {
    std::fprintf(stderr, "  %s\n", lines[i].c_str());
  }
}

int Replay(const Settings& settings) {
  RunOptions options = OptionsOf(settings, settings.first_seed);
  options.tell = [](const std::string& line) {
    std::fprintf(stderr, "%s\n", line.c_str());
  };
  const RunResult result = RunSeed(options);
  std::fprintf(stderr, "seed %llu: trace %016llx %s\n",
               static_cast<ULL>(options.seed), static_cast<ULL>(result.trace),
               result.failure.c_str());
  return result.failure.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  settings.threads = std::max(1u, std::thread::hardware_concurrency());
  CLI::App app("Whole-system simulator; every seed is one run.");
  app.add_option("--seeds", settings.seeds, "How many");
  app.add_option("--first-seed", settings.first_seed, "The first of them");
  CLI::Option* const replay =
      app.add_option("--seed", settings.first_seed, "Replay this one alone");
  app.add_option("--threads", settings.threads, "At most 1024")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--until-violation", settings.until_violation,
               "Stop at the first one");
  app.add_option("--stories", settings.stories,
                 "Folder for the stories of failing seeds")
      ->check(CLI::ExistingDirectory);
  app.add_option("--mutant", settings.mutant,
                 "Break a rule on purpose (mutant.h)")
      ->check(CLI::Range(0, 5));
  CLI11_PARSE(app, argc, argv);
  if (*replay) return Replay(settings);

  const auto start = std::chrono::steady_clock::now();
  const Total total = RunAll(settings);
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  size_t told = 0;
  for (const auto& [seed, failure] : total.violations) {
    std::fprintf(stderr, "seed %llu failed %s\n  replay: sim --seed=%llu\n",
                 static_cast<ULL>(seed), failure.c_str(),
                 static_cast<ULL>(seed));
    if (told++ < kStories && !settings.until_violation) {
      TellStory(settings, seed);
    }
  }
  uint64_t min_hits = ~uint64_t{0};
  for (const auto& [kind, count] : total.faults) {
    std::printf("%8llu %s\n", static_cast<ULL>(count), kind.c_str());
    min_hits = std::min(min_hits, count);
  }
  std::printf("%8llu steps committed, %llu results delivered\n",
              static_cast<ULL>(total.commits), static_cast<ULL>(total.steps));
  std::printf(
      "{\"seeds\": %llu, \"violations\": %zu, \"fault_kinds\": %zu, "
      "\"min_hits\": %llu, \"seconds\": %.1f}\n",
      static_cast<ULL>(total.seeds), total.violations.size(),
      total.faults.size(), static_cast<ULL>(min_hits), seconds.count());
  return total.violations.empty() ? 0 : 1;
}
