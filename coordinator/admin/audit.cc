#include "coordinator/admin/audit.h"

#include "absl/strings/str_cat.h"
#include "base/one_line.h"

namespace pactrain::coordinator {
namespace {

protocol::AuditLine FromProto(const v1::AuditLine& line) {
  return {line.number(),
          {line.kind(),
           {line.who(), line.serial()},
           line.job(),
           line.what(),
           line.why(),
           line.at()},
          line.hash()};
}

}  // namespace

std::string AuditText(const v1::AuditLine& line) {
  std::string text = absl::StrCat(line.number(), "  ", line.at(), "  ",
                                  line.kind(), "  ", line.who());
  if (!line.serial().empty()) absl::StrAppend(&text, " #", line.serial());
  if (!line.job().empty()) absl::StrAppend(&text, "  job ", line.job());
  absl::StrAppend(&text, "  ", line.what());
  if (!line.why().empty()) absl::StrAppend(&text, ": ", line.why());
  return base::OneLine(text) + "\n";
}

protocol::AuditPage FromProto(const v1::ReadAuditResponse& page) {
  protocol::AuditPage read{page.newest(), page.before_hash(), {}};
  for (const v1::AuditLine& line : page.lines()) {
    read.lines.push_back(FromProto(line));
  }
  return read;
}

}  // namespace pactrain::coordinator
