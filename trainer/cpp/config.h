// Where the agent is and which job this is, from the environment: the variables
// and rules of the Python client (a table is in the user guide).
#ifndef PACTRAIN_TRAINER_CPP_CONFIG_H_
#define PACTRAIN_TRAINER_CPP_CONFIG_H_

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <sstream>
#include <string>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/onset.h"
#include "trainer/cpp/types.h"
#include "trainer/cpp/world.h"

namespace pactrain {

// Everything that attaching needs beside the model.
struct AttachConfig {
  std::string agent = {};  // "unix:/run/pactrain/agent.sock"
  std::string job = {};
  std::string site = {};    // Empty: the agent's.
  std::string launch = {};  // Equal on all ranks of one launch.
  uint32_t rank = 0;
  uint32_t world_size = 1;
  double attach_timeout_seconds = 300;
  // Drop gradients outside the masks, and keep weights there 0 unless masks are
  // tracked. Not set: true, but not where they are.
  std::optional<bool> gse = {};
  bool sync_masks = true;  // Take rank 0's masks; false: refuse different ones.
  uint32_t buffer_sync_interval = 50;       // Committed steps; 0: never.
  uint32_t parameter_check_interval = 100;  // Committed steps.
  // Equal on all ranks. A Session alone knows kAbort only: what the other two
  // ask of a rank is done by TorchTrainer.
  OnShrink on_shrink = OnShrink::kAbort;
  // Masks are what is not zero in the weights, whoever prunes them. As
  // on_shrink, this is done by TorchTrainer.
  bool track = false;
  // Steps that masks are to be the same for; 0: 10 where they are tracked, else
  // 1.
  uint32_t settle = 0;
  // As of pactrain.attach(): with which steps of gradients, counted from 1,
  // masks come in force, and what travels from step pin_from on ("TERNARY 7").
  uint32_t activate_at = 0;  // 0: masks of the start with the first step.
  std::string pin = {};      // Empty: nothing is pinned.
  uint32_t pin_from = 0;     // 0: the first step.
  // A complete launch begins the job anew although ranks that hold its state
  // may live; those end with ReplacedError.
  bool replace = false;

  bool drops_gradients() const { return gse.value_or(!track); }
  uint32_t settle_steps() const {
    return settle != 0 ? settle : (track ? 10 : 1);
  }
  // InvalidArgument: as OnsetFrom().
  Onset onset() const { return OnsetFrom(activate_at, pin, pin_from); }
  // A generation may begin with this rank's masks.
  bool declares() const {
    return !track && settle_steps() == 1 && activate_at <= 1;
  }
  // Ranks may come and go.
  bool elastic() const { return on_shrink != OnShrink::kAbort; }
};

namespace internal {

constexpr uint32_t kMaxInterval = 1'000'000;

inline void CheckInterval(const std::string& field, uint32_t value,
                          uint32_t lowest) {
  if (value < lowest || value > kMaxInterval) {
    throw InvalidArgument(field + " is " + std::to_string(value) +
                          "; allowed are " + std::to_string(lowest) + " to " +
                          std::to_string(kMaxInterval) +
                          ".\nGive a number of steps in that range.");
  }
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

// FNV-1a of 64 bits as 16 hexadecimal digits; for names, not against malice.
inline std::string NameDigest(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return Digest{hash, 0}.ToString().substr(0, 16);
}

inline std::string RandomToken() {
  std::random_device random;
  return std::to_string(random()) + " " + std::to_string(random());
}

// Equal on all ranks; those of the Python client. One of several sites has no
// launcher in it: its name is the same after a restart.
inline std::string LaunchFrom(const Environment& environment,
                              const std::string& job, const World& world) {
  const std::string named = Variable(environment, "PACTRAIN_LAUNCH");
  if (!named.empty()) return named;
  if (world.sites.size() > 1) {
    const std::string sites = world.SitesText();
    std::string text = "pactrain sites";
    for (const std::string& part : {job, sites}) {
      text.push_back('\0');
      text += part;
    }
    return sites.substr(0, 46) + " " + NameDigest(text);
  }
  std::string parts;
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                           "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID",
                           "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) {
    parts += Variable(environment, name);
    parts.push_back('\0');
  }
  // Of one process, which nothing tells from others of the job.
  if (world.world_size == 1) parts += RandomToken();
  return NameDigest(parts);
}

// Without zeros at the end.
inline std::string Plain(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

inline OnShrink OnShrinkFrom(const Environment& environment) {
  const std::string text = Variable(environment, "PACTRAIN_ON_SHRINK");
  if (text.empty() || text == "pause") return OnShrink::kPause;
  if (text == "continue") return OnShrink::kContinue;
  if (text == "abort") return OnShrink::kAbort;
  throw InvalidArgument("PACTRAIN_ON_SHRINK is '" + text +
                        "'; allowed are 'pause', 'continue' and 'abort'.\n"
                        "Give all ranks the same one of them.");
}

inline bool ReplaceFrom(const Environment& environment) {
  const std::string text = Variable(environment, "PACTRAIN_REPLACE");
  if (text.empty() || text == "0") return false;
  if (text == "1") return true;
  throw InvalidArgument("PACTRAIN_REPLACE is '" + text +
                        "'; allowed are 0 and 1.\nSet it to 1 to begin the job "
                        "anew in place of ranks that may live, or unset it.");
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
  internal::CheckInterval("settle", config.settle, 0);
  config.onset();
  if (!(config.attach_timeout_seconds >= 1 &&
        config.attach_timeout_seconds <= 86400)) {
    throw InvalidArgument("PACTRAIN_ATTACH_TIMEOUT is " +
                          internal::Plain(config.attach_timeout_seconds) +
                          "; allowed are 1 to 86400.\n"
                          "Set it to a number of seconds in that range.");
  }
}

// The configuration of one attach from PACTRAIN_* and the launcher's variables.
// PacTrainError: PACTRAIN_AGENT is not set.
// InvalidArgument: as WorldFrom() and CheckConfig().
inline AttachConfig ConfigFromEnvironment(
    const Environment& environment = ProcessEnvironment) {
  AttachConfig config;
  const World world = WorldFrom(environment);
  config.agent = internal::AgentFrom(environment);
  config.job = internal::JobFrom(environment);
  config.site = world.site;
  config.launch = internal::LaunchFrom(environment, config.job, world);
  config.rank = world.rank;
  config.world_size = world.world_size;
  config.attach_timeout_seconds = internal::TimeoutFrom(environment);
  config.on_shrink = internal::OnShrinkFrom(environment);
  config.replace = internal::ReplaceFrom(environment);
  CheckConfig(config);
  return config;
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_CONFIG_H_
