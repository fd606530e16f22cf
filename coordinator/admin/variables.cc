#include "coordinator/admin/variables.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/net.h"
#include "base/status_macros.h"
#include "base/tls/job_keys.h"
#include "config/environment.h"
#include "config/field.h"
#include "config/nearest.h"
#include "pactrain/v1/config.pb.h"
#include "protocol/types.h"

namespace pactrain::coordinator {
namespace {

constexpr char kPrefix[] = "PACTRAIN_";
constexpr size_t kPrefixSize = sizeof(kPrefix) - 1;

// What is wrong with a value; its text begins with the name of the variable.
using Check = absl::Status (*)(const std::string& name,
                               const std::string& value);

absl::Status Allowed(const std::string& name, const std::string& value,
                     absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", config::Quoted(value), "; allowed ", allowed));
}

absl::Status AnyText(const std::string&, const std::string&) {
  return absl::OkStatus();
}

absl::Status Name(const std::string& name, const std::string& value) {
  return protocol::CheckName(name, value);
}

absl::Status Switch(const std::string& name, const std::string& value) {
  if (value == "0" || value == "1") return absl::OkStatus();
  return Allowed(name, value, "are 0 and 1");
}

absl::Status Seconds(const std::string& name, const std::string& value) {
  double seconds = 0;
  if (absl::SimpleAtod(value, &seconds) && seconds >= 1 && seconds <= 86400) {
    return absl::OkStatus();
  }
  return Allowed(name, value, "are 1 to 86400 seconds");
}

absl::Status Socket(const std::string& name, const std::string& value) {
  if (value.rfind("unix:/", 0) == 0) return absl::OkStatus();
  return Allowed(name, value,
                 "is unix: and an absolute path, like "
                 "unix:/run/pactrain/agent.sock");
}

absl::Status Address(const std::string& name, const std::string& value) {
  if (base::ParseHostPort(value).ok()) return absl::OkStatus();
  return Allowed(name, value, "is host:port, like 127.0.0.1:7070");
}

absl::Status Sites(const std::string& name, const std::string& value) {
  for (const absl::string_view site : absl::StrSplit(value, ',')) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(site, absl::MaxSplits(':', 1));
    uint32_t trainers = 0;
    if (!protocol::CheckName(name, parts.first).ok() ||
        !absl::SimpleAtoi(parts.second, &trainers) || trainers == 0) {
      return Allowed(name, value,
                     "is name:trainers of each site in order, like a:2,b:4");
    }
  }
  return absl::OkStatus();
}

absl::Status OnShrink(const std::string& name, const std::string& value) {
  if (value == "pause" || value == "continue" || value == "abort") {
    return absl::OkStatus();
  }
  return Allowed(name, value, "are pause, continue and abort");
}

absl::Status DevicePath(const std::string& name, const std::string& value) {
  for (const char* path : {"auto", "torch", "device", "nccl"}) {
    if (value == path) return absl::OkStatus();
  }
  return Allowed(name, value, "are auto, torch, device and nccl");
}

// Never says the value.
absl::Status JobKeyText(const std::string& name, const std::string& value) {
  if (base::JobKeys::FromText(value).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name,
      " is not a job's key; allowed is what pactrain-admin new-key "
      "writes"));
}

struct Variable {
  const char* name;
  Check check;
};

constexpr Variable kVariables[] = {
    {"PACTRAIN_ADMIN_JOB_KEY_FILE", AnyText},
    {"PACTRAIN_ADMIN_TLS_CA", AnyText},
    {"PACTRAIN_ADMIN_TLS_CERT", AnyText},
    {"PACTRAIN_ADMIN_TLS_KEY", AnyText},
    {"PACTRAIN_AGENT", Socket},
    {"PACTRAIN_AGENT_CONFIG", AnyText},
    {"PACTRAIN_ATTACH_TIMEOUT", Seconds},
    {"PACTRAIN_COORDINATOR", Address},
    {"PACTRAIN_COORDINATOR_CONFIG", AnyText},
    {"PACTRAIN_DAEMON_DIR", AnyText},
    {"PACTRAIN_DEVICE_PATH", DevicePath},
    {"PACTRAIN_EMBEDDED", Switch},
    {"PACTRAIN_HOST_ADDRESS", AnyText},
    {"PACTRAIN_JOB_ID", Name},
    {"PACTRAIN_JOB_KEY", JobKeyText},
    {"PACTRAIN_LAUNCH", AnyText},
    {"PACTRAIN_LOG_DIR", AnyText},
    {"PACTRAIN_ON_SHRINK", OnShrink},
    {"PACTRAIN_REPLACE", Switch},
    {"PACTRAIN_SITE", Name},
    {"PACTRAIN_SITES", Sites},
    {"PACTRAIN_TRAINER_LIBRARY", AnyText},
};

// Of embedded daemons: the setting of the same name.
constexpr const char* kEmbedded[] = {
    "codec",  "epoch-steps", "listen-page",   "min-exchange-share",
    "renice", "risk",        "step-deadline", "straggler-timeout"};

// A variable that is a setting of a daemon.
struct Setting {
  const config::FieldDescriptor* field;
  const config::Descriptor* settings;
};

std::map<std::string, Setting> Settings() {
  std::map<std::string, Setting> all;
  const config::Descriptor* const coordinator =
      v1::CoordinatorConfig::descriptor();
  const config::Descriptor* const agent = v1::AgentConfig::descriptor();
  const auto add = [&](const char* prefix, const config::FieldDescriptor* field,
                       const config::Descriptor* settings) {
    all[config::VariableOf(prefix, *field)] = {field, settings};
  };
  for (const auto* field : config::FieldsOf(*coordinator)) {
    add("PACTRAIN_COORDINATOR", field, coordinator);
  }
  for (const auto* field : config::FieldsOf(*agent)) {
    add("PACTRAIN_AGENT", field, agent);
  }
  for (const char* key : kEmbedded) {
    const auto* field = config::FindKey(*coordinator, key);
    const bool of_coordinator = field != nullptr;
    if (!of_coordinator) field = config::FindKey(*agent, key);
    add("PACTRAIN", field, of_coordinator ? coordinator : agent);
  }
  return all;
}

absl::Status CheckSetting(const std::string& name, const Setting& setting,
                          const std::string& value) {
  const std::unique_ptr<config::Message> scratch(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(setting.settings)
          ->New());
  const absl::Status set = config::SetFromText(*setting.field, value, *scratch);
  if (set.ok()) return set;
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", absl::string_view(set.message())));
}

// Of services in Kubernetes, or of our own tests.
bool IsForeign(const std::string& name, const std::string& value) {
  return absl::StartsWith(name, "PACTRAIN_TEST_") ||
         config::IsOfKubernetes("PACTRAIN", name, value);
}

Finding Problem(const std::string& what, const std::string& to_do) {
  return {"variables", Level::kProblem, what, to_do};
}

Finding Unknown(const std::string& name) {
  // What all have in common says nothing. Of two equally near the longer: a
  // letter is forgotten more often than replaced.
  std::vector<std::string> words;
  for (const std::string& known : KnownVariables()) {
    words.push_back(known.substr(kPrefixSize));
  }
  std::stable_sort(
      words.begin(), words.end(),
      [](const auto& a, const auto& b) { return a.size() > b.size(); });
  const std::string nearest = config::Nearest(name.substr(kPrefixSize), words);
  return Problem(
      absl::StrCat(name, " is no variable of PacTrain and has no effect"),
      nearest.empty() ? "unset it; docs/environment.md has a table of all"
                      : absl::StrCat("did you mean ", kPrefix, nearest, "?"));
}

}  // namespace

std::vector<std::string> KnownVariables() {
  std::map<std::string, bool> names;
  for (const Variable& variable : kVariables) names[variable.name] = true;
  for (const auto& [name, setting] : Settings()) names[name] = true;
  std::vector<std::string> known;
  for (const auto& [name, unused] : names) known.push_back(name);
  return known;
}

Findings CheckVariables(const Variables& variables) {
  const std::map<std::string, Setting> settings = Settings();
  Findings findings;
  int set = 0;
  for (const auto& [name, value] : variables) {
    if (name.rfind(kPrefix, 0) != 0 || IsForeign(name, value)) continue;
    const auto* const end = std::end(kVariables);
    const auto* const known = std::find_if(
        std::begin(kVariables), end,
        [&name = name](const Variable& v) { return name == v.name; });
    const auto setting = settings.find(name);
    if (known == end && setting == settings.end()) {
      findings.push_back(Unknown(name));
      continue;
    }
    if (value.empty()) continue;  // Counts as not set.
    ++set;
    const absl::Status status =
        known != end ? known->check(name, value)
                     : CheckSetting(name, setting->second, value);
    if (!status.ok()) {
      findings.push_back(Problem(std::string(status.message()),
                                 "correct it, or unset it for the default"));
    }
  }
  if (findings.empty()) {
    findings.push_back(
        {"variables", Level::kOk,
         set == 0 ? "none is set"
                  : absl::StrCat(set, " set, all known and well-formed"),
         ""});
  }
  return findings;
}

}  // namespace pactrain::coordinator
