#include "coordinator/admin/completion.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace pactrain::coordinator {
namespace {

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back(absl::StrCat("--", name));
    }
  }
  return flags;
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  const auto none = [](const CLI::App*) { return true; };
  std::vector<std::string> commands;
  std::string cases;
  const std::vector<std::string> common = FlagsOf(app);
  for (const CLI::App* command : app.get_subcommands(none)) {
    commands.push_back(command->get_name());
    std::vector<std::string> words = common;
    for (const std::string& flag : FlagsOf(*command)) words.push_back(flag);
    absl::StrAppend(&cases, "      ", command->get_name(), ") words=\"",
                    absl::StrJoin(words, " "), "\"; break ;;\n");
  }
  return absl::StrCat(
      "# bash completion of pactrain-admin: source it, or install it as\n"
      "# /usr/share/bash-completion/completions/pactrain-admin\n"
      "_pactrain_admin() {\n"
      "  local word words=\"",
      absl::StrJoin(commands, " "), " ", absl::StrJoin(common, " "),
      "\"\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case $word in\n",
      cases,
      "    esac\n"
      "  done\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- "
      "\"${COMP_WORDS[COMP_CWORD]}\")\n"
      "}\n"
      "complete -o default -F _pactrain_admin pactrain-admin\n");
}

}  // namespace pactrain::coordinator
