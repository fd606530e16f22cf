// What `pactrain doctor` prints.
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/counted.h"
#include "coordinator/admin/doctor.h"

namespace pactrain::coordinator {
namespace {

std::string LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "";
}

int Count(const Findings& findings, Level level) {
  return static_cast<int>(
      std::count_if(findings.begin(), findings.end(),
                    [&](const Finding& f) { return f.level == level; }));
}

}  // namespace

bool IsHealthy(const Findings& findings) {
  return Count(findings, Level::kProblem) == 0;
}

std::string DoctorText(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-12s %-8s %s\n", finding.check,
                          LevelName(finding.level), finding.what);
    if (!finding.to_do.empty()) {
      absl::StrAppendFormat(&text, "%-12s %-8s -> %s\n", "", "", finding.to_do);
    }
  }
  return absl::StrCat(
      text, base::Counted(Count(findings, Level::kProblem), "problem"), ", ",
      base::Counted(Count(findings, Level::kWarning), "warning"), "\n");
}

std::string DoctorJson(const Findings& findings) {
  google::protobuf::Struct report;
  auto& fields = *report.mutable_fields();
  fields["ok"].set_bool_value(IsHealthy(findings));
  auto& checks = *fields["checks"].mutable_list_value();
  for (const Finding& finding : findings) {
    auto& entry =
        *checks.add_values()->mutable_struct_value()->mutable_fields();
    entry["check"].set_string_value(finding.check);
    entry["level"].set_string_value(LevelName(finding.level));
    entry["what"].set_string_value(finding.what);
    entry["to_do"].set_string_value(finding.to_do);
  }
  std::string json;
  // Fails for types that are not ours only.
  (void)google::protobuf::util::MessageToJsonString(report, &json);
  return json + "\n";
}

}  // namespace pactrain::coordinator
