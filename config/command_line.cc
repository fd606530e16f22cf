#include "config/command_line.h"

#include <algorithm>
#include <deque>
#include <sstream>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "config/nearest.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::config {
namespace {

const char* TypeName(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return "UINT";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "FLOAT";
    default:
      return "TEXT";
  }
}

// The flags of all settings; what was written is kept as words, since reading
// them is the same for all sources.
class Flags {
 public:
  Flags(CLI::App& app, const Message& defaults) {
    for (const FieldDescriptor* field : FieldsOf(*defaults.GetDescriptor())) {
      Add(app, *field, defaults);
    }
  }

  void Get(CommandLine& line) const {
    for (const auto& [field, option] : options_) {
      if (option->count() > 0) {
        line.settings.emplace_back(field, option->results());
      }
    }
  }

 private:
  void Add(CLI::App& app, const FieldDescriptor& field,
           const Message& defaults) {
    const std::string flag = FlagOf(field);
    const std::string help = field.options().GetExtension(v1::help);
    CLI::Option* option;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      option = app.add_flag(flag, texts_.emplace_back(), help);
    } else {
      option = field.is_repeated()
                   ? app.add_option(flag, lists_.emplace_back(), help)
                   : app.add_option(flag, texts_.emplace_back(), help);
      option->type_name(TypeName(field));
      option->default_str(absl::StrJoin(TextsOf(field, defaults), ","));
    }
    options_.emplace_back(&field, option);
  }

  // CLI11 wants a place for each; deques keep them where they are.
  std::deque<std::string> texts_;
  std::deque<std::vector<std::string>> lists_;
  std::vector<std::pair<const FieldDescriptor*, CLI::Option*>> options_;
};

absl::Status Unknown(const CLI::App& app, const std::string& flag) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back(absl::StrCat("--", name));
    }
  }
  const std::string nearest = Nearest(flag, flags);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag ", Quoted(flag), "; ",
      nearest.empty() ? "" : absl::StrCat("did you mean ", nearest, "? "),
      "see --help"));
}

// The arguments as CLI11 wants them, last one first. After "--flag=" or
// "--flag" it would take the next argument for the value, whatever that is.
absl::StatusOr<std::vector<std::string>> WordsOf(const CLI::App& app, int argc,
                                                 const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    const std::string flag = word.substr(0, equals);
    const CLI::Option* option =
        absl::StartsWith(word, "--") ? app.get_option_no_throw(flag) : nullptr;
    if (option == nullptr && absl::StartsWith(word, "--") && word != "--") {
      return Unknown(app, flag);
    }
    const bool takes_value =
        option != nullptr && option->get_items_expected_max() > 0;
    const bool empty = option != nullptr && equals == word.size() - 1;
    if (empty && !takes_value) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": '' is not true or false; see --help"));
    }
    if (takes_value && equals == word.npos && i + 1 < argc &&
        absl::StartsWith(argv[i + 1], "--")) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": no value comes before ", Quoted(argv[i + 1]),
                       "; see --help"));
    }
    words.push_back(empty ? flag : word);
    if (empty) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());
  return words;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const Program& program,
                                             const Message& defaults, int argc,
                                             const char* const* argv) {
  CLI::App app{absl::StrCat(program.name, ": ", program.summary), program.name};
  app.footer(absl::StrCat(
      "Each setting may also be a line 'listen-metrics: VALUE' of the file, or "
      "a "
      "variable such as ",
      program.variable_prefix,
      "_LISTEN_METRICS; flags go before variables, these before the file."));
  app.set_version_flag("--version", base::kVersion);
  CommandLine line;
  const CLI::Option* file =
      app.add_option("--config", line.file,
                     absl::StrCat("YAML file with settings; also ",
                                  program.variable_prefix, "_CONFIG"));
  app.add_flag("--print-config", line.print,
               "Print all settings and where they come from, and exit");
  const CLI::Option* task =
      program.task_file == nullptr
          ? nullptr
          : app.add_option(program.task, *program.task_file, program.task_help);
  const Flags flags(app, defaults);
  ASSIGN_OR_RETURN(std::vector<std::string> words, WordsOf(app, argc, argv));
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(error.what(), "; see --help"));
    }
    std::ostringstream answer;  // --help or --version
    app.exit(error, answer, answer);
    line.answer = answer.str();
    return line;
  }
  if (file->count() > 0 && line.file.empty()) {
    return absl::InvalidArgumentError("--config: '' is not a file; see --help");
  }
  if (task != nullptr && task->count() > 0 && program.task_file->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(program.task, ": '' is not a file; see --help"));
  }
  flags.Get(line);
  return line;
}

}  // namespace pactrain::config
