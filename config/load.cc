#include "config/load.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/one_line.h"
#include "base/status_macros.h"
#include "config/environment.h"
#include "config/small_file.h"
#include "config/yaml.h"

namespace pactrain::config {
namespace {

std::string Variable(const std::string& name) {
  const char* text = std::getenv(name.c_str());
  return text == nullptr ? "" : text;
}

// Advice has lines; what it quotes is the file's, or the variable's.
std::string InLines(absl::string_view text) {
  return absl::StrJoin(absl::StrSplit(text, '\n'), "\n",
                       [](std::string* out, absl::string_view line) {
                         out->append(base::OneLine(line));
                       });
}

absl::Status ReadFile(const Program& program, const CommandLine& line,
                      Settings& settings) {
  const std::string variable = absl::StrCat(program.variable_prefix, "_CONFIG");
  const bool flag = !line.file.empty();
  const std::string path = flag ? line.file : Variable(variable);
  if (path.empty()) return absl::OkStatus();
  const auto contents = ReadSmallFile(path);
  if (contents.ok()) return ReadYaml(*contents, path, settings);
  return absl::Status(
      contents.status().code(),
      absl::StrCat(flag ? "--config" : variable, ": ",
                   absl::string_view(contents.status().message())));
}

absl::Status ReadSettings(const Program& program, const CommandLine& line,
                          Settings& settings) {
  RETURN_IF_ERROR(CheckNames(program.variable_prefix,
                             *settings.values().GetDescriptor(), environ));
  RETURN_IF_ERROR(ReadFile(program, line, settings));
  for (const FieldDescriptor* field :
       FieldsOf(*settings.values().GetDescriptor())) {
    const std::string name = VariableOf(program.variable_prefix, *field);
    const std::string text = Variable(name);
    if (text.empty()) continue;
    RETURN_IF_ERROR(settings.Assign(*field, {text}, {name, name}));
  }
  for (const auto& [field, texts] : line.settings) {
    const std::string flag = FlagOf(*field);
    RETURN_IF_ERROR(settings.Assign(*field, texts, {flag, flag}));
  }
  return absl::OkStatus();
}

}  // namespace

bool Load(const Program& program, int argc, const char* const* argv,
          Message& config,
          const std::function<absl::Status(const Settings&)>& check,
          int* exit_code) {
  const auto end = [&](const absl::Status& status, const std::string& answer) {
    if (status.ok()) {
      std::cout << answer << std::flush;
    } else {
      std::cerr << program.name << ": " << InLines(status.message())
                << std::endl;
    }
    *exit_code = status.ok() ? 0 : 2;
    return false;
  };
  const auto line = ParseCommandLine(program, config, argc, argv);
  if (!line.ok()) return end(line.status(), "");
  if (!line->answer.empty()) return end(absl::OkStatus(), line->answer);
  Settings settings(config);
  absl::Status status = ReadSettings(program, *line, settings);
  if (status.ok()) status = check(settings);
  if (!status.ok()) return end(status, "");
  if (line->print) return end(status, settings.ToYaml());
  return true;
}

absl::Status LoadAgain(const Program& program, int argc,
                       const char* const* argv, Message& config) {
  ASSIGN_OR_RETURN(const CommandLine line,
                   ParseCommandLine(program, config, argc, argv));
  Settings settings(config);
  return ReadSettings(program, line, settings);
}

}  // namespace pactrain::config
