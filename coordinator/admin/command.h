// The command line of pactrain-admin.
#ifndef PACTRAIN_COORDINATOR_ADMIN_COMMAND_H_
#define PACTRAIN_COORDINATOR_ADMIN_COMMAND_H_

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/tls/tls_files.h"
#include "pactrain/v1/admin.pb.h"

namespace pactrain::coordinator {

struct Command {
  std::string name;     // As it was written: "jobs".
  std::string who;      // Of "evict" and "readmit"; the agent of "[un]drain".
  v1::Group group;      // Of those that are of one job.
  bool why = false;     // "decisions" only.
  bool force = false;   // "drain" only.
  std::string file;     // "backup" only.
  bool verify = false;  // "audit" only.
  std::vector<std::string> witness_files;  // The same.
  std::optional<v1::Pin> pin;              // "pin" only.
  std::string coordinator;                 // "127.0.0.1:7070"
  base::TlsFiles tls;                      // Not given: plain text.
  std::string job_key_file;                // "doctor" only: as given.
  absl::Status tls_mistake;  // "doctor" only: why `tls` cannot be used.
  bool json = false;
  bool insecure_network = false;
  bool coordinator_named = false;  // By a flag or variable.
  std::string new_file;            // "new-key" only; nothing else counts then.
  std::string bound_job;           // The same: empty: of any.
  std::string from_file;           // Holds the key that it is made of.
  // "rotate-key" only: when the new key is shown, and until when the old one is
  // taken.
  absl::Time at, until;
};

// What messages call this command's own settings.
base::TlsNames AdminTlsNames();

// Nothing: the process is to end with `*exit_code`: 0 after --help or
// --version, 2 after a mistake. What is to be said then is written.
std::optional<Command> ParseCommand(int argc, const char* const* argv,
                                    std::ostream& out, std::ostream& err,
                                    int* exit_code);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_COMMAND_H_
