// What `pactrain doctor` asks, and whom.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/net.h"
#include "base/status_macros.h"
#include "base/tls/job_keys.h"
#include "base/tls/tls_choice.h"
#include "base/version.h"
#include "coordinator/admin/admin_client.h"
#include "coordinator/admin/agent_probe.h"
#include "coordinator/admin/dial.h"
#include "coordinator/admin/doctor.h"
#include "coordinator/admin/kernels_probe.h"
#include "protocol/types.h"

namespace pactrain::coordinator {
namespace {

constexpr char kDefaultSocket[] = "/run/pactrain/agent.sock";
constexpr absl::Duration kCallTimeout = absl::Seconds(5);
constexpr absl::Duration kDialTimeout = absl::Seconds(3);

std::string ValueOf(const Variables& variables, const std::string& name) {
  const auto it = variables.find(name);
  return it == variables.end() ? "" : it->second;
}

// As the Python client reads it.
std::string SocketOf(const Variables& variables) {
  std::string named = ValueOf(variables, "PACTRAIN_AGENT");
  if (named.empty()) return kDefaultSocket;
  if (named.rfind("unix:///", 0) == 0) return named.substr(7);
  return named.rfind("unix:", 0) == 0 ? named.substr(5) : named;
}

// The command's, then those that daemons of this environment would have.
std::vector<Certificate> CertificatesOf(const Command& command,
                                        const Variables& variables) {
  std::vector<Certificate> certificates;
  const auto add = [&](const base::TlsFiles& files,
                       const base::TlsNames& names) {
    if (files.cert.empty() && files.key.empty() && files.ca.empty()) return;
    certificates.push_back(
        {names.cert, files.cert, base::LivesOf(files, names)});
  };
  // Those made of a key are made anew each day.
  if (command.tls.keeper == nullptr) add(command.tls, AdminTlsNames());
  for (const std::string prefix : {"PACTRAIN_AGENT", "PACTRAIN_COORDINATOR"}) {
    const base::TlsNames names{prefix + "_TLS_CERT", prefix + "_TLS_KEY",
                               prefix + "_TLS_CA"};
    add({ValueOf(variables, names.cert), ValueOf(variables, names.key),
         ValueOf(variables, names.ca)},
        names);
  }
  return certificates;
}

absl::StatusOr<int> ModeOf(const std::string& setting,
                           const std::string& file) {
  RETURN_IF_ERROR(base::JobKeys::FromFile(setting, file).status());
  struct stat found = {};
  if (stat(file.c_str(), &found) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(setting, ": ", file, " has gone"));
  }
  return static_cast<int>(found.st_mode & 07777);
}

// As CertificatesOf().
std::vector<Key> KeysOf(const Command& command, const Variables& variables) {
  std::vector<Key> keys;
  const auto add = [&](const std::string& setting, const std::string& file) {
    if (!file.empty()) keys.push_back({file, ModeOf(setting, file)});
  };
  add(AdminTlsNames().job_key_file, command.job_key_file);
  for (const std::string setting :
       {"PACTRAIN_AGENT_JOB_KEY_FILE", "PACTRAIN_COORDINATOR_JOB_KEY_FILE"}) {
    add(setting, ValueOf(variables, setting));
  }
  // What is no key there, the check of variables says.
  const std::string text = ValueOf(variables, base::kJobKeyVariable);
  if (base::JobKeys::FromText(text).ok()) {
    keys.push_back({base::kJobKeyVariable, 0});
  }
  return keys;
}

// The program of the wheel lies in PACKAGES/pactrain/_native.
std::string PackagesFolder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto native = program.parent_path();
  if (native.filename() != "_native") return "";
  return native.parent_path().parent_path().string();
}

void AskCoordinator(const Command& command, Facts& facts) {
  const absl::Status address =
      base::CheckDialAddress(
          "--coordinator (or PACTRAIN_COORDINATOR)", facts.coordinator,
          facts.tls ? base::Protection::kTls : base::Protection::kTlsNotYet,
          command.insecure_network)
          .status();
  if (!address.ok()) {
    facts.answer = address;
    return;
  }
  AdminClient::Options options;
  options.address = facts.coordinator;
  options.tls = command.tls;
  options.call_timeout = kCallTimeout;
  AdminClient client(options);
  // The first call has to make the connection, too: the second one is timed.
  facts.answer = client.ListAgents();
  if (!facts.answer.ok()) return;
  const absl::Time before = absl::Now();
  const auto timed = client.ListAgents();
  facts.round_trip = absl::Now() - before;
  if (!timed.ok()) return;
  facts.clock_ahead = absl::UnixEpoch() + absl::Seconds(timed->unix_seconds()) -
                      (before + facts.round_trip / 2);
}

}  // namespace

Facts Gather(const Command& command, const Variables& variables) {
  Facts facts;
  facts.version = base::kVersion;
  facts.now = absl::Now();
  facts.variables = variables;
  const auto library =
      FindTrainerLibrary(ValueOf(variables, "PACTRAIN_TRAINER_LIBRARY"));
  facts.kernels = library.ok() ? AskKernels(*library) : library.status();
  facts.gpu = LookAtGpuNode("", PackagesFolder(), environ);
  facts.socket = SocketOf(variables);
  facts.socket_named = !ValueOf(variables, "PACTRAIN_AGENT").empty();
  facts.agent = AskAgent(facts.socket);
  facts.certificates = CertificatesOf(command, variables);
  facts.keys = KeysOf(command, variables);
  facts.tls_mistake = command.tls_mistake;
  facts.tls = command.tls.given();
  if (command.coordinator_named) {
    facts.coordinator = command.coordinator;
  } else if (facts.agent.ok()) {
    facts.coordinator = facts.agent->coordinator;
  }
  if (!facts.coordinator.empty() && facts.tls_mistake.ok()) {
    AskCoordinator(command, facts);
  }
  if (!facts.agent.ok()) return facts;
  std::set<std::string> addresses = {facts.agent->data_address};
  if (facts.answer.ok()) {
    for (const v1::AgentState& agent : facts.answer->agents()) {
      if (agent.connected()) addresses.insert(agent.data_address());
    }
  }
  addresses.erase(std::string(protocol::kNobodyDials));
  facts.dialled = DialAll(addresses, kDialTimeout);
  return facts;
}

}  // namespace pactrain::coordinator
