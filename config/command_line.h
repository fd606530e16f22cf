// The command line of a daemon: a flag for each of its settings.
#ifndef PACTRAIN_CONFIG_COMMAND_LINE_H_
#define PACTRAIN_CONFIG_COMMAND_LINE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "config/field.h"

namespace pactrain::config {

// What a daemon says of itself.
struct Program {
  std::string name;             // "pactrain-agent"
  std::string summary;          // A sentence for --help.
  std::string variable_prefix;  // "PACTRAIN_AGENT"
  // A further flag, no setting, that takes a file: what to do in the place of
  // starting. Nowhere to put it: there is none.
  std::string task = {};  // "--restore"
  std::string task_help = {};
  std::string* task_file = nullptr;
};

struct CommandLine {
  std::vector<std::pair<const FieldDescriptor*, std::vector<std::string>>>
      settings;        // Those given, as written.
  std::string file;    // --config; empty: not given.
  bool print = false;  // --print-config
  std::string answer;  // To --help or --version; empty: none was asked.
};

// `defaults` are shown by --help.
// "--flag=" gives an empty value, as "--flag" and "" do.
// InvalidArgument: an unknown flag, one given twice or without its value (what
// begins with "--" is none), an empty --config, or an empty value of a switch.
absl::StatusOr<CommandLine> ParseCommandLine(const Program& program,
                                             const Message& defaults, int argc,
                                             const char* const* argv);

}  // namespace pactrain::config

#endif  // PACTRAIN_CONFIG_COMMAND_LINE_H_
