// pactrain-admin: the operator's command. Exit code 0: done; 1: refused, the
// coordinator cannot be reached, or the doctor has found a problem; 2: a
// mistake on the command line.
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "base/one_line.h"
#include "coordinator/admin/doctor.h"
#include "coordinator/admin/run.h"

namespace pactrain::coordinator {
namespace {

Variables VariablesOf(char** environment) {
  Variables variables;
  for (char** entry = environment; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (text.rfind("PACTRAIN_", 0) == 0 && equals != text.npos) {
      variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return variables;
}

int Doctor(const Command& command) {
  const Findings findings = Examine(Gather(command, VariablesOf(environ)));
  std::cout << (command.json ? DoctorJson(findings) : DoctorText(findings));
  return IsHealthy(findings) ? 0 : 1;
}

}  // namespace
}  // namespace pactrain::coordinator

int main(int argc, char** argv) {
  namespace admin = pactrain::coordinator;
  // What gRPC has to say comes back as errors, in words.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Standard output is for answers.
  PT_CHECK(pactrain::base::InitLog("admin", "warn"));
  int exit_code = 0;
  const std::optional<admin::Command> command =
      admin::ParseCommand(argc, argv, std::cout, std::cerr, &exit_code);
  if (!command) return exit_code;
  if (command->name == "doctor") return admin::Doctor(*command);
  admin::AdminClient client({command->coordinator, command->tls});
  const absl::Status status =
      admin::Run(*command, client, std::cout, std::cerr);
  if (status.ok()) return 0;
  std::cerr << "pactrain-admin: " << pactrain::base::OneLine(status.message())
            << std::endl;
  return 1;
}
