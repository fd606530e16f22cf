#include "coordinator/admin/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace pactrain::coordinator {
std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back(absl::StrCat("--", name));
    }
  }
  return flags;
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command :
       app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::string BashCompletion(const CLI::App& app) {
  const std::vector<std::string> commands = CommandsOf(app);
  std::string cases;
  const std::vector<std::string> common = FlagsOf(app);
  for (const std::string& name : commands) {
    std::vector<std::string> words = common;
    for (const std::string& flag : FlagsOf(*app.get_subcommand(name))) {
      words.push_back(flag);
    }
    absl::StrAppend(&cases, "      ", name, ") words=\"",
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
