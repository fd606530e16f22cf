// What a shell completes of this command's line.
#ifndef PACTRAIN_COORDINATOR_ADMIN_COMPLETION_H_
#define PACTRAIN_COORDINATOR_ADMIN_COMPLETION_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace pactrain::coordinator {

// Their names.
std::vector<std::string> CommandsOf(const CLI::App& app);

// A script for bash: commands, their options and fixed values, else files.
std::string BashCompletion(const CLI::App& app);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_COMPLETION_H_
