// What a daemon does first: takes its settings from flags, before environment
// variables, before a YAML file, before defaults.
#ifndef PACTRAIN_CONFIG_LOAD_H_
#define PACTRAIN_CONFIG_LOAD_H_

#include <functional>

#include "absl/status/status.h"
#include "config/command_line.h"
#include "config/settings.h"

namespace pactrain::config {

// Fills `config`, which holds the defaults, and has `check` look at it.
//
// A variable that is empty counts as not set. One that begins like ours and
// names no setting is a mistake, unless Kubernetes makes it for services
// (PACTRAIN_AGENT_PORT=tcp://...).
//
// True: go on. False: the process is to end with `*exit_code`, 0 after --help,
// --version and --print-config, 2 after a mistake; the one message is written.
bool Load(const Program& program, int argc, const char* const* argv,
          Message& config,
          const std::function<absl::Status(const Settings&)>& check,
          int* exit_code);

// The same for a process that runs: nothing is printed or checked beyond the
// schema, and flags that ask for an answer change nothing.
// InvalidArgument and errors of files: what Load() would have printed.
absl::Status LoadAgain(const Program& program, int argc,
                       const char* const* argv, Message& config);

}  // namespace pactrain::config

#endif  // PACTRAIN_CONFIG_LOAD_H_
