// pactrain-admin: the operator's command. Exit code 0: done; 1: refused, or the
// coordinator cannot be reached; 2: a mistake on the command line.
#include <cstdlib>
#include <iostream>
#include <optional>

#include "coordinator/admin/run.h"

int main(int argc, char** argv) {
  namespace admin = pactrain::coordinator;
  // What gRPC has to say comes back as errors, in words.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  int exit_code = 0;
  const std::optional<admin::Command> command =
      admin::ParseCommand(argc, argv, std::cout, std::cerr, &exit_code);
  if (!command) return exit_code;
  admin::AdminClient client({command->coordinator, command->tls});
  const absl::Status status =
      admin::Run(*command, client, std::cout, std::cerr);
  if (status.ok()) return 0;
  std::cerr << "pactrain-admin: " << status.message() << std::endl;
  return 1;
}
