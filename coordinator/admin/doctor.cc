#include "coordinator/admin/doctor.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/releases.h"
#include "coordinator/admin/admin_client.h"
#include "coordinator/admin/links.h"
#include "protocol/types.h"

namespace pactrain::coordinator {
namespace {

constexpr absl::Duration kClockOff = absl::Seconds(5);
constexpr absl::Duration kClockWrong = absl::Minutes(5);

// Collects what is found.
class Doctor {
 public:
  explicit Doctor(const Facts& facts) : facts_(facts) {}

  Findings Examine() {
    findings_ = CheckVariables(facts_.variables);
    Agent();
    for (const Certificate& certificate : facts_.certificates) {
      CheckCertificate(certificate);
    }
    Keys();
    Coordinator();
    if (facts_.answer.ok()) {
      Clock();
      Agents();
      Sites();
      Add(CheckLinks(*facts_.answer));
    }
    if (facts_.agent.ok()) {
      OwnAddress();
      Peers();
    }
    GpuKernels();
    Add(CheckGpuNode(facts_.gpu));
    return std::move(findings_);
  }

 private:
  void Ok(const std::string& check, const std::string& what) {
    findings_.push_back({check, Level::kOk, what, ""});
  }
  void Warn(const std::string& check, const std::string& what,
            const std::string& to_do) {
    findings_.push_back({check, Level::kWarning, what, to_do});
  }
  void Problem(const std::string& check, const std::string& what,
               const std::string& to_do) {
    findings_.push_back({check, Level::kProblem, what, to_do});
  }

  // Two parts of the cluster are of different versions.
  void Differ(const std::string& check, const std::string& one,
              const std::string& other, const std::string& what);

  void Add(const Findings& findings) {
    findings_.insert(findings_.end(), findings.begin(), findings.end());
  }

  void Agent();
  void CheckCertificate(const Certificate& certificate);
  void Keys();
  void Coordinator();
  // Of a coordinator that gave no answer.
  void NoAnswer(const absl::Status& why);
  void Clock();
  void Agents();
  void Sites();
  void OwnAddress();
  void Peers();
  void GpuKernels();

  const Facts& facts_;
  Findings findings_;
};

void Doctor::Agent() {
  const absl::StatusOr<wire::About>& agent = facts_.agent;
  if (absl::IsNotFound(agent.status()) && !facts_.socket_named) {
    return Ok("agent",
              "none on this node: attach() starts one for each job (Python)");
  }
  if (!agent.ok()) {
    const std::string what =
        absl::StrCat("unix:", facts_.socket, " ",
                     absl::string_view(agent.status().message()));
    return Problem("agent", what,
                   absl::IsPermissionDenied(agent.status())
                       ? "run the training as the agent's user"
                   : absl::IsFailedPrecondition(agent.status())
                       ? "install the same release of library and agent"
                       : "start pactrain-agent on this node (its log says why "
                         "it ended), or correct PACTRAIN_AGENT");
  }
  if (facts_.version != agent->version) {
    Problem("agent",
            absl::StrCat("it has version ", agent->version, ", the library ",
                         facts_.version),
            "install the same release of both");
  }
  const std::string who = absl::StrCat(agent->agent, " of site ", agent->site);
  if (agent->connected == 0) {
    return Problem("agent",
                   absl::StrCat(who, " is not connected with its coordinator ",
                                agent->coordinator),
                   "start the coordinator, or see why in the agent's log");
  }
  Ok("agent", absl::StrCat(who, ", version ", agent->version, ", listens at ",
                           agent->listen));
}

void Doctor::CheckCertificate(const Certificate& certificate) {
  if (!certificate.lives.ok()) {
    return Problem(
        "certificate", std::string(certificate.lives.status().message()),
        "give a certificate, its key and the CA that fit each other");
  }
  const auto& [own, ca] = *certificate.lives;
  const std::string what =
      absl::StrCat(certificate.file, " ", own.Text(facts_.now));
  const std::string soon = ", less than a fifth of its life";
  if (own.EndsSoon(facts_.now)) {
    Warn("certificate", what + soon,
         "issue a new one; files may be rewritten while daemons run");
  } else {
    Ok("certificate", what);
  }
  if (ca.EndsSoon(facts_.now)) {
    Warn("certificate",
         absl::StrCat("the CA of ", certificate.file, " ", ca.Text(facts_.now),
                      soon),
         "make a new CA; a CA file may hold the old and the new one while "
         "certificates are replaced");
  }
}

void Doctor::Keys() {
  for (const Key& key : facts_.keys) {
    if (!key.mode.ok()) {
      Problem("key", std::string(key.mode.status().message()),
              "give the key file that the daemons were started with, of mode "
              "0600");
    } else if (*key.mode == 0) {
      Ok("key", absl::StrCat("in the variable ", key.source));
    } else {
      Ok("key", absl::StrFormat("%s, mode %04o", key.source, *key.mode));
    }
  }
  // Of its file or of the certificates that is said already.
  const std::string mistake(facts_.tls_mistake.message());
  const bool told = std::any_of(
      findings_.begin(), findings_.end(),
      [&](const Finding& finding) { return finding.what == mistake; });
  if (facts_.tls_mistake.ok() || told) return;
  Problem("key", mistake,
          "give the daemons' key or certificates that the CA has signed, not "
          "both");
}

void Doctor::Coordinator() {
  if (facts_.coordinator.empty()) {
    return Ok("coordinator",
              "none is named: a job without PACTRAIN_AGENT "
              "starts its own");
  }
  if (facts_.answer.ok()) {
    const v1::ListAgentsResponse& answer = *facts_.answer;
    const std::string what = absl::StrFormat(
        "%s (%s), version %s, term %d, answers in %.1f ms", facts_.coordinator,
        facts_.tls ? "TLS" : "plain text", answer.version(), answer.term(),
        absl::ToDoubleMilliseconds(facts_.round_trip));
    if (answer.version() == facts_.version) return Ok("coordinator", what);
    return Differ("coordinator", answer.version(), facts_.version,
                  absl::StrCat(what, "; the library has ", facts_.version));
  }
  NoAnswer(facts_.answer.status());
}

void Doctor::Differ(const std::string& check, const std::string& one,
                    const std::string& other, const std::string& what) {
  if (base::CompareReleases(one, other) == base::Releases::kNeighbours) {
    return Warn(check, what,
                "finish the upgrade; neighbouring releases work together "
                "meanwhile");
  }
  Problem(check, what, "install the same release everywhere");
}

void Doctor::NoAnswer(const absl::Status& why) {
  const std::string message(why.message());
  if (!facts_.tls_mistake.ok()) {
    return Problem("coordinator", "not asked: see the certificate or key",
                   "correct that first");
  }
  if (absl::IsPermissionDenied(why) || absl::IsUnauthenticated(why)) {
    return Problem("coordinator", message,
                   "name an operator's or reader's certificate with "
                   "--tls-cert, --tls-key, --tls-ca (or PACTRAIN_ADMIN_TLS_*), "
                   "or the job's key with --job-key-file (or "
                   "PACTRAIN_JOB_KEY)");
  }
  if (absl::IsUnimplemented(why)) {
    return Problem("coordinator", message,
                   "install the same release everywhere");
  }
  // AdminClient knows best where there was no connection at all.
  const std::vector<std::string> parts =
      absl::StrSplit(message, absl::MaxSplits(AdminClient::kBeforeAdvice, 1));
  if (parts.size() == 2) {
    return Problem("coordinator", parts[0] + ")", parts[1]);
  }
  Problem("coordinator", message,
          "start it, open its port to this node, or correct --coordinator");
}

void Doctor::Clock() {
  const absl::Duration off = absl::AbsDuration(facts_.clock_ahead);
  const std::string what = absl::StrFormat(
      "the coordinator's is %.2f s %s this one", absl::ToDoubleSeconds(off),
      facts_.clock_ahead < absl::ZeroDuration() ? "behind" : "ahead of");
  const std::string to_do =
      "set both by NTP: certificates are valid by the clock, and logs are "
      "compared by it";
  if (off > kClockWrong) return Problem("clock", what, to_do);
  if (off > kClockOff) return Warn("clock", what, to_do);
  Ok("clock", what);
}

void Doctor::Agents() {
  const std::string& version = facts_.answer->version();
  int connected = 0;
  std::set<std::string> sites;
  for (const v1::AgentState& agent : facts_.answer->agents()) {
    const std::string who =
        absl::StrCat(agent.agent(), " of site ", agent.site());
    if (!agent.connected()) {
      Warn("agents", absl::StrCat(who, " has lost the coordinator"),
           "see whether it runs, and its log");
      continue;
    }
    ++connected;
    sites.insert(agent.site());
    if (agent.version() != version) {
      Differ("agents", agent.version(), version,
             absl::StrCat(who, " has version ", agent.version(),
                          ", the coordinator ", version));
    }
  }
  if (facts_.agent.ok()) {
    const auto& agents = facts_.answer->agents();
    const bool known = std::any_of(
        agents.begin(), agents.end(), [&](const v1::AgentState& agent) {
          return agent.agent() == facts_.agent->agent && agent.connected();
        });
    if (!known) {
      Problem("agents",
              absl::StrCat("this coordinator does not know this node's agent, ",
                           facts_.agent->agent, ", which uses ",
                           facts_.agent->coordinator),
              "name the same coordinator here and there");
    }
  }
  if (connected == 0) {
    return Warn("agents", "none is connected",
                "start pactrain-agent on a node");
  }
  Ok("agents", absl::StrCat(connected, " connected, of ", sites.size(),
                            " sites: ", absl::StrJoin(sites, ", ")));
}

void Doctor::Sites() {
  const auto wanted = facts_.variables.find("PACTRAIN_SITES");
  if (wanted == facts_.variables.end() || wanted->second.empty()) return;
  std::set<std::string> there;
  for (const v1::AgentState& agent : facts_.answer->agents()) {
    if (agent.connected()) there.insert(agent.site());
  }
  for (const absl::string_view entry : absl::StrSplit(wanted->second, ',')) {
    const std::string site(entry.substr(0, entry.find(':')));
    if (there.contains(site)) continue;
    Problem("sites",
            absl::StrCat("no agent of site ", site,
                         ", which PACTRAIN_SITES "
                         "names, is connected"),
            absl::StrCat("start one with --site ", site,
                         ", or correct PACTRAIN_SITES"));
  }
}

void Doctor::OwnAddress() {
  const std::string address = facts_.agent->data_address;
  if (address == protocol::kNobodyDials) {
    return Ok("address", "nobody dials this node: its agent dials all others");
  }
  const auto dialled = facts_.dialled.find(address);
  if (dialled == facts_.dialled.end()) return;
  if (dialled->second.ok()) {
    return Ok("address",
              absl::StrCat(address, ", can be dialled from this node itself"));
  }
  Warn("address",
       absl::StrCat(address,
                    ", which others are told, cannot be dialled from "
                    "this node itself: ",
                    absl::string_view(dialled->second.message())),
       absl::StrCat("open the port, or correct --advertise-address (the agent "
                    "listens at ",
                    facts_.agent->listen, "); none: it dials all others"));
}

void Doctor::Peers() {
  if (!facts_.answer.ok()) return;
  const bool hidden = facts_.agent->data_address == protocol::kNobodyDials;
  int others = 0, dialled = 0;
  for (const v1::AgentState& agent : facts_.answer->agents()) {
    if (!agent.connected() || agent.agent() == facts_.agent->agent) continue;
    ++others;
    const std::string who =
        absl::StrCat(agent.agent(), " of site ", agent.site());
    if (agent.data_address() == protocol::kNobodyDials) {
      if (hidden) {
        Problem("peers",
                absl::StrCat(who, " has no address either: neither can dial"),
                "give one of the two an --advertise-address");
      }
      continue;
    }
    const auto result = facts_.dialled.find(agent.data_address());
    if (result == facts_.dialled.end()) continue;
    if (result->second.ok()) {
      ++dialled;
      continue;
    }
    const std::string what =
        absl::StrCat(who, " cannot be dialled at ", agent.data_address(), ": ",
                     absl::string_view(result->second.message()));
    if (hidden) {
      Problem("peers", what, "open that port to this node");
    } else {
      Warn("peers", what,
           "fine if it can dial this node; else open one of the two ports");
    }
  }
  if (others == 0) return Ok("peers", "there is no other agent");
  Ok("peers",
     absl::StrCat(dialled, " of ", others, " can be dialled from here"));
}

// Information alone: models on a GPU train without them.
void Doctor::GpuKernels() {
  const absl::StatusOr<Kernels>& kernels = facts_.kernels;
  if (absl::IsNotFound(kernels.status())) {
    return Ok("kernels", absl::StrCat("for GPUs: not asked, since ",
                                      kernels.status().message()));
  }
  if (!kernels.ok()) {
    return Warn("kernels", std::string(kernels.status().message()),
                "install the same release of library and programs, or correct "
                "PACTRAIN_TRAINER_LIBRARY");
  }
  Ok("kernels",
     absl::StrCat(kernels->can_run ? "for GPUs: can run here on "
                                   : "for GPUs: cannot run here: ",
                  kernels->words,
                  "; used where PACTRAIN_DEVICE_PATH is device or nccl"));
}

}  // namespace

Findings Examine(const Facts& facts) { return Doctor(facts).Examine(); }

}  // namespace pactrain::coordinator
