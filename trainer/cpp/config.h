// Where the agent is and which job this is, from the environment: the variables
// and rules of the Python client (a table is in the user guide).
#ifndef PACTRAIN_TRAINER_CPP_CONFIG_H_
#define PACTRAIN_TRAINER_CPP_CONFIG_H_

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <system_error>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/types.h"

namespace pactrain {

// The value of a variable; null where it is not set.
using Environment = std::function<const char*(const char* name)>;

inline const char* ProcessEnvironment(const char* name) {
  return std::getenv(name);
}

// Everything that attaching needs beside the model.
struct AttachConfig {
  std::string agent = {};  // "unix:/run/pactrain/agent.sock"
  std::string job = {};
  std::string site = {};    // Empty: the agent's.
  std::string launch = {};  // Equal on all ranks of one launch.
  uint32_t rank = 0;
  uint32_t world_size = 1;
  double attach_timeout_seconds = 300;
  bool gse = true;  // Drop gradients outside the masks, keep weights there 0.
  bool sync_masks = true;  // Take rank 0's masks; false: refuse different ones.
  uint32_t buffer_sync_interval = 50;       // Committed steps; 0: never.
  uint32_t parameter_check_interval = 100;  // Committed steps.
};

namespace internal {

constexpr uint32_t kMaxInterval = 1'000'000;

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

inline void CheckInterval(const std::string& field, uint32_t value,
                          uint32_t lowest) {
  if (value < lowest || value > kMaxInterval) {
    throw InvalidArgument(field + " is " + std::to_string(value) +
                          "; allowed are " + std::to_string(lowest) + " to " +
                          std::to_string(kMaxInterval) +
                          ".\nGive a number of steps in that range.");
  }
}

inline std::string Variable(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

inline std::string AgentFrom(const Environment& environment) {
  const std::string agent = Variable(environment, "PACTRAIN_AGENT");
  if (agent.empty()) {
    throw PacTrainError(
        "PACTRAIN_AGENT is not set: there is no agent to hand gradients to.\n"
        "Start one on this node (pactrain-agent "
        "--socket=unix:/run/pactrain/agent.sock ...) and set "
        "PACTRAIN_AGENT=unix:/run/pactrain/agent.sock.");
  }
  return agent.starts_with("unix:///") ? "unix:" + agent.substr(7) : agent;
}

// What a launcher calls the job, made a name; empty if that leaves nothing.
inline std::string CleanName(std::string name) {
  for (char& c : name) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (!IsNameChar(c)) c = '-';
  }
  if (name.size() > 63) name.resize(63);
  while (!name.empty() && !IsLetterOrDigit(name.back())) name.pop_back();
  const auto first = name.find_first_not_of("-._");
  return first == std::string::npos ? "" : name.substr(first);
}

inline std::string JobFrom(const Environment& environment) {
  const std::string named = Variable(environment, "PACTRAIN_JOB_ID");
  if (!named.empty()) return named;
  std::string derived = Variable(environment, "SLURM_JOB_ID");
  if (derived.empty()) derived = Variable(environment, "TORCHELASTIC_RUN_ID");
  // torchrun's own default.
  if (derived == "none") derived.clear();
  const std::string cleaned = CleanName(derived);
  return cleaned.empty() ? "default" : cleaned;
}

// Equal on all ranks, another after a restart as far as the launcher tells.
inline std::string LaunchFrom(const Environment& environment) {
  const std::string named = Variable(environment, "PACTRAIN_LAUNCH");
  if (!named.empty()) return named;
  std::string parts;
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                           "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID",
                           "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) {
    parts += Variable(environment, name);
    parts.push_back('\0');
  }
  return DigestOf(parts).ToString();
}

// Of the first variable that is set.
inline uint32_t CountFrom(const Environment& environment, const char* name,
                          const char* slurm_name) {
  const char* used = environment(name) != nullptr ? name : slurm_name;
  const std::string text = Variable(environment, used);
  uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() ||
      end != text.data() + text.size()) {
    throw InvalidArgument(std::string(name) + " is '" + text +
                          "'; allowed is a number.\n"
                          "Start the ranks with torchrun --no-python or Slurm, "
                          "or set RANK and WORLD_SIZE.");
  }
  return value;
}

// Without zeros at the end.
inline std::string Plain(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

inline double TimeoutFrom(const Environment& environment) {
  const std::string text = Variable(environment, "PACTRAIN_ATTACH_TIMEOUT");
  if (text.empty()) return 300;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) {
    throw InvalidArgument("PACTRAIN_ATTACH_TIMEOUT is '" + text +
                          "'; allowed are 1 to 86400.\n"
                          "Set it to a number of seconds.");
  }
  return seconds;
}

}  // namespace internal

// InvalidArgument, naming the field, what came and what is allowed.
inline void CheckConfig(const AttachConfig& config) {
  if (!config.agent.starts_with("unix:/")) {
    throw InvalidArgument("PACTRAIN_AGENT is '" + config.agent +
                          "'; allowed is 'unix:' and an absolute path, like "
                          "'unix:/run/pactrain/agent.sock'.\nSet it to the "
                          "--socket of the pactrain-agent on this node.");
  }
  internal::CheckName("PACTRAIN_JOB_ID", config.job);
  if (!config.site.empty()) {
    internal::CheckName("PACTRAIN_SITE", config.site);
  }
  if (config.launch.empty() || config.launch.size() > 63) {
    throw InvalidArgument("PACTRAIN_LAUNCH has " +
                          std::to_string(config.launch.size()) +
                          " characters; allowed are 1 to 63.\n"
                          "Set it to such a name, equal on all ranks.");
  }
  if (config.world_size < 1 || config.world_size > 1024) {
    throw InvalidArgument("world_size is " + std::to_string(config.world_size) +
                          "; allowed are 1 to 1024.\n"
                          "Start the job with so many processes.");
  }
  if (config.rank >= config.world_size) {
    throw InvalidArgument("rank is " + std::to_string(config.rank) +
                          "; allowed are 0 to " +
                          std::to_string(config.world_size - 1) +
                          ".\nStart the ranks with torchrun or Slurm.");
  }
  internal::CheckInterval("buffer_sync_interval", config.buffer_sync_interval,
                          0);
  internal::CheckInterval("parameter_check_interval",
                          config.parameter_check_interval, 1);
  if (!(config.attach_timeout_seconds >= 1 &&
        config.attach_timeout_seconds <= 86400)) {
    throw InvalidArgument("PACTRAIN_ATTACH_TIMEOUT is " +
                          internal::Plain(config.attach_timeout_seconds) +
                          "; allowed are 1 to 86400.\n"
                          "Set it to a number of seconds in that range.");
  }
}

// The configuration of one attach from PACTRAIN_* and the launcher's variables.
// PacTrainError: PACTRAIN_AGENT is not set. InvalidArgument: as CheckConfig().
inline AttachConfig ConfigFromEnvironment(
    const Environment& environment = ProcessEnvironment) {
  AttachConfig config;
  config.agent = internal::AgentFrom(environment);
  config.job = internal::JobFrom(environment);
  config.site = internal::Variable(environment, "PACTRAIN_SITE");
  config.launch = internal::LaunchFrom(environment);
  config.rank = internal::CountFrom(environment, "RANK", "SLURM_PROCID");
  config.world_size =
      internal::CountFrom(environment, "WORLD_SIZE", "SLURM_NTASKS");
  config.attach_timeout_seconds = internal::TimeoutFrom(environment);
  CheckConfig(config);
  return config;
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_CONFIG_H_
