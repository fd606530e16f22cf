#include "config/environment.h"

#include <algorithm>
#include <regex>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "config/nearest.h"

namespace pactrain::config {

bool IsOfKubernetes(absl::string_view prefix, const std::string& name,
                    absl::string_view value) {
  // What follows a service's name, and what may be a setting of ours as well.
  static const std::regex kService(
      "(_\\w+)?_(SERVICE_HOST|SERVICE_PORT(_\\w+)?|"
      "PORT_\\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)");
  static const std::regex kPort("(_\\w+)?_PORT");
  if (!absl::StartsWith(name, prefix)) return false;
  const std::string rest = name.substr(prefix.size());
  return std::regex_match(rest, kService) ||
         (std::regex_match(rest, kPort) && absl::StrContains(value, "://"));
}

absl::Status CheckNames(absl::string_view prefix, const Descriptor& settings,
                        const char* const* environment) {
  std::vector<std::string> known = {absl::StrCat(prefix, "_CONFIG")};
  for (const FieldDescriptor* field : FieldsOf(settings)) {
    known.push_back(VariableOf(prefix, *field));
  }
  const std::string begin = absl::StrCat(prefix, "_");
  for (; *environment != nullptr; ++environment) {
    const std::pair<std::string, std::string> variable =
        absl::StrSplit(*environment, absl::MaxSplits('=', 1));
    const auto& [name, value] = variable;
    const bool is_known =
        std::find(known.begin(), known.end(), name) != known.end();
    if (is_known || value.empty() || !absl::StartsWith(name, begin) ||
        IsOfKubernetes(prefix, name, value)) {
      continue;
    }
    // What all have in common says nothing.
    std::vector<std::string> words;
    for (const std::string& word : known) {
      words.push_back(word.substr(begin.size()));
    }
    const std::string nearest = Nearest(name.substr(begin.size()), words);
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown variable ", Quoted(name), "; ",
        nearest.empty() ? "unset it, or "
                        : absl::StrCat("did you mean ", begin, nearest, "? "),
        "see --help"));
  }
  return absl::OkStatus();
}

}  // namespace pactrain::config
