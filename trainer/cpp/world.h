// This process's place among the trainers of all sites.
//
// Each site has a launch of its own, whose launcher knows the ranks of that
// site only. PACTRAIN_SITES names the sites of the job in order with their
// trainers. Rules and texts are those of the Python client (world.py).
// Here is also how variables of a process are read.
#ifndef PACTRAIN_TRAINER_CPP_WORLD_H_
#define PACTRAIN_TRAINER_CPP_WORLD_H_

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"

namespace pactrain {

// The value of a variable; null where it is not set.
using Environment = std::function<const char*(const char* name)>;

inline const char* ProcessEnvironment(const char* name) {
  return std::getenv(name);
}

struct Site {
  std::string name = {};  // Empty: the only site, and PACTRAIN_SITE is not set.
  uint32_t trainers = 1;
};

// `rank` and `world_size` are over all sites: ranks of a site are consecutive,
// sites in the order given. For samplers and seeds.
struct World {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string site = {};
  std::vector<Site> sites = {};

  // As PACTRAIN_SITES has them.
  std::string SitesText() const {
    std::string text;
    for (const Site& item : sites) {
      text += (text.empty() ? "" : ",") + item.name + ":" +
              std::to_string(item.trainers);
    }
    return text;
  }
};

namespace internal {

inline constexpr uint32_t kMaxRanks = 1024;  // Of a job; protocol/limits.h.
inline constexpr size_t kMaxSites = 32;

inline std::string Variable(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

inline bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

inline bool IsLetterOrDigit(char c) {
  return IsNameChar(c) && c != '-' && c != '.' && c != '_';
}

inline void CheckName(const std::string& field, const std::string& name) {
  bool good = !name.empty() && name.size() <= 63 &&
              IsLetterOrDigit(name.front()) && IsLetterOrDigit(name.back());
  for (const char c : name) good = good && IsNameChar(c);
  if (!good) {
    throw InvalidArgument(
        field + " is '" + name +
        "'; allowed are 1 to 63 of a-z, 0-9, '-', '.' and '_', a letter or "
        "digit first and last.\nSet " +
        field + " to such a name.");
  }
}

// What this site's launcher says. `size_from` names its variable.
struct Launch {
  uint32_t rank = 0;
  uint32_t size = 1;
  std::string size_from =
      "The number of processes (RANK, WORLD_SIZE and SLURM_PROCID are not set)";
};

// Nothing if it is not one of one to nine digits.
inline std::optional<uint32_t> ParseCount(const std::string& text) {
  uint32_t value = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (text.size() > 9 || error != std::errc() || end != last) return {};
  return value;
}

inline uint32_t NumberFrom(const Environment& environment, const char* name,
                           uint32_t low, uint32_t high) {
  const std::string text = Variable(environment, name);
  const auto value = ParseCount(text);
  if (value.has_value() && *value >= low && *value <= high) return *value;
  throw InvalidArgument(
      std::string(name) +
      (environment(name) == nullptr ? " is not set" : " is '" + text + "'") +
      "; allowed are " + std::to_string(low) + " to " + std::to_string(high) +
      ".\nStart the ranks of this site with torchrun --no-python or Slurm, or "
      "set RANK and WORLD_SIZE.");
}

inline Launch LaunchOf(const Environment& environment) {
  const auto launch = [&](const char* rank, const char* size) {
    const uint32_t count = NumberFrom(environment, size, 1, kMaxRanks);
    return Launch{NumberFrom(environment, rank, 0, count - 1), count, size};
  };
  if (environment("RANK") != nullptr || environment("WORLD_SIZE") != nullptr) {
    return launch("RANK", "WORLD_SIZE");
  }
  // Not SLURM_NTASKS: a batch script and an salloc shell have SLURM_PROCID=0
  // and that too, of tasks that only an srun of theirs would start.
  if (environment("SLURM_STEP_NUM_TASKS") != nullptr) {
    return launch("SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
  }
  return {};
}

inline Site SiteFrom(std::string part, const std::string& text) {
  part.erase(0, part.find_first_not_of(' '));
  part.erase(part.find_last_not_of(' ') + 1);
  const size_t colon = part.find(':');
  const auto count =
      ParseCount(colon == std::string::npos ? "" : part.substr(colon + 1));
  if (!count.has_value()) {
    throw InvalidArgument(
        "PACTRAIN_SITES has '" + part + "' in '" + text +
        "'; allowed is 'name:trainers' of each site in order, like 'a:2,b:4'."
        "\nSet it alike at all sites.");
  }
  const Site site = {part.substr(0, colon), *count};
  CheckName("A name in PACTRAIN_SITES", site.name);
  if (site.trainers < 1 || site.trainers > kMaxRanks) {
    throw InvalidArgument(
        "PACTRAIN_SITES gives site '" + site.name + "' " +
        std::to_string(site.trainers) + " trainers; allowed are 1 to " +
        std::to_string(kMaxRanks) + ".\nLeave out a site without trainers.");
  }
  return site;
}

inline std::vector<Site> SitesFrom(const std::string& text) {
  std::vector<Site> sites;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    Site site = SiteFrom(part, text);
    for (const Site& other : sites) {
      if (other.name != site.name) continue;
      throw InvalidArgument("PACTRAIN_SITES has site '" + site.name +
                            "' twice in '" + text +
                            "'; allowed is each name once.\n"
                            "Name the sites differently.");
    }
    sites.push_back(std::move(site));
  }
  if (sites.size() > kMaxSites) {
    throw InvalidArgument("PACTRAIN_SITES has " + std::to_string(sites.size()) +
                          " sites; allowed are 1 to " +
                          std::to_string(kMaxSites) +
                          ".\nJoin sites that share a fast network.");
  }
  return sites;
}

// The trainers of the sites before this one, whose launch has to fit.
inline uint32_t RanksBefore(const std::string& name,
                            const std::vector<Site>& sites,
                            const Launch& launch, const std::string& text) {
  uint32_t before = 0;
  std::string names;
  for (const Site& site : sites) {
    if (site.name != name) {
      before += site.trainers;
      names += (names.empty() ? "" : ", ") + site.name;
      continue;
    }
    if (launch.size == site.trainers) return before;
    throw InvalidArgument(
        launch.size_from + " is " + std::to_string(launch.size) +
        "; allowed is " + std::to_string(site.trainers) +
        ", the trainers of site '" + name + "' in PACTRAIN_SITES=" + text +
        ".\nStart as many processes there, with torchrun or Slurm or with RANK "
        "and WORLD_SIZE set, or change PACTRAIN_SITES at all sites.");
  }
  throw InvalidArgument(
      "PACTRAIN_SITE " + (name.empty() ? "is not set" : "is '" + name + "'") +
      "; allowed are the sites in PACTRAIN_SITES=" + text + ": " + names +
      ".\nSet it to the site that this launch runs in.");
}

}  // namespace internal

// From the launcher's variables, which are RANK and WORLD_SIZE, else
// SLURM_PROCID and SLURM_STEP_NUM_TASKS (srun), and PACTRAIN_SITES; without any
// of them this process is the only trainer.
// InvalidArgument: a variable is missing or does not fit the others.
inline World WorldFrom(const Environment& environment = ProcessEnvironment) {
  const internal::Launch launch = internal::LaunchOf(environment);
  const std::string name = internal::Variable(environment, "PACTRAIN_SITE");
  if (!name.empty()) internal::CheckName("PACTRAIN_SITE", name);
  const std::string text = internal::Variable(environment, "PACTRAIN_SITES");
  World world = {.site = name,
                 .sites = text.empty() ? std::vector<Site>{{name, launch.size}}
                                       : internal::SitesFrom(text)};
  world.rank =
      launch.rank + internal::RanksBefore(name, world.sites, launch, text);
  if (world.sites.size() > 1 &&
      internal::Variable(environment, "PACTRAIN_JOB_ID").empty()) {
    throw InvalidArgument(
        "PACTRAIN_JOB_ID is not set; with several sites in PACTRAIN_SITES it "
        "has to be: the launches of the sites find each other by it.\n"
        "Set it to one name at all sites.");
  }
  world.world_size = 0;
  for (const Site& site : world.sites) world.world_size += site.trainers;
  if (world.world_size > internal::kMaxRanks) {
    throw InvalidArgument(
        "PACTRAIN_SITES gives " + std::to_string(world.world_size) +
        " trainers; allowed are 1 to " + std::to_string(internal::kMaxRanks) +
        ".\nTrain with fewer processes.");
  }
  return world;
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_WORLD_H_
