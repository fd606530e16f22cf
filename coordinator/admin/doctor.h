// `pactrain doctor`: looks at this node and the cluster, and says what to fix.
//
// Changes nothing. Gather() asks everybody, each for a bounded time; what the
// answers mean says Examine(), which is pure.
#ifndef PACTRAIN_COORDINATOR_ADMIN_DOCTOR_H_
#define PACTRAIN_COORDINATOR_ADMIN_DOCTOR_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/certificate_life.h"
#include "coordinator/admin/command.h"
#include "coordinator/admin/finding.h"
#include "coordinator/admin/gpu_node.h"
#include "coordinator/admin/kernels_probe.h"
#include "coordinator/admin/variables.h"
#include "pactrain/v1/admin.pb.h"
#include "trainer/wire.h"

namespace pactrain::coordinator {

struct Certificate {
  std::string setting;  // "--tls-cert", or the variable that names the file.
  std::string file;
  // Or what is wrong with the three.
  absl::StatusOr<base::CertificateLives> lives;
};

struct Key {
  std::string source;        // Its file, or the variable that holds it.
  absl::StatusOr<int> mode;  // Of the file, 0: a variable; or what is wrong.
};

struct Facts {
  std::string version;  // Ours.
  absl::Time now;
  Variables variables;
  std::string socket;         // Where the agent of this node should be.
  bool socket_named = false;  // By PACTRAIN_AGENT.
  absl::StatusOr<wire::About> agent;
  std::vector<Certificate> certificates;  // Those that are files.
  std::vector<Key> keys;
  absl::Status tls_mistake;  // Why the command's own cannot be used.
  std::string coordinator;   // "host:port"; empty: nobody names one.
  bool tls = false;
  absl::StatusOr<v1::ListAgentsResponse> answer;
  absl::Duration round_trip;
  absl::Duration clock_ahead;                   // Of the coordinator's clock.
  std::map<std::string, absl::Status> dialled;  // By address.
  absl::StatusOr<Kernels> kernels;              // Of the trainer library.
  GpuNode gpu;
};

Facts Gather(const Command& command, const Variables& variables);

Findings Examine(const Facts& facts);

// Lines for a terminal; the last one says how many problems there are.
std::string DoctorText(const Findings& findings);
// {"ok": false, "checks": [{"check", "level", "what", "to_do"}, ...]}
std::string DoctorJson(const Findings& findings);

// No problem is among them.
bool IsHealthy(const Findings& findings);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_DOCTOR_H_
