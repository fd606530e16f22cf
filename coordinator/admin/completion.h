// What a shell completes of this command's line.
#ifndef PACTRAIN_COORDINATOR_ADMIN_COMPLETION_H_
#define PACTRAIN_COORDINATOR_ADMIN_COMPLETION_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace pactrain::coordinator {

// Their names.
std::vector<std::string> CommandsOf(const CLI::App& app);

// Its options: "--json".
std::vector<std::string> FlagsOf(const CLI::App& app);

// A script for bash: commands and their options, else files.
std::string BashCompletion(const CLI::App& app);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_COMPLETION_H_
