#include "coordinator/admin/audit.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/one_line.h"
#include "base/status_macros.h"
#include "base/tls/chain_hash.h"
#include "protocol/audit.h"

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

absl::Status AuditChecker::CheckLine(const v1::AuditLine& line) {
  if (line.number() != last_ + 1) {
    return absl::DataLossError(absl::StrCat("the audit log was changed: line ",
                                            last_ + 1, " is missing, ",
                                            line.number(), " comes next"));
  }
  if (line.hash() != base::ChainHash(*hash_, FromProto(line).Fields())) {
    return absl::DataLossError(
        absl::StrCat("the audit log was changed: line ", line.number(),
                     " is not what was written, or what was before it is not"));
  }
  last_ = line.number();
  hash_ = line.hash();
  ++lines_;
  return absl::OkStatus();
}

absl::Status AuditChecker::Check(const v1::ReadAuditResponse& page) {
  if (!hash_) {
    hash_ = page.before_hash();
    // Older ones may have been cut; without any of them number 1 comes first.
    if (!hash_->empty() && page.lines_size() > 0) {
      last_ = page.lines(0).number() - 1;
    }
  }
  for (const v1::AuditLine& line : page.lines()) {
    RETURN_IF_ERROR(CheckLine(line));
  }
  if (page.lines_size() == 0 && last_ != page.newest()) {
    return absl::DataLossError(
        absl::StrCat("the audit log was changed: line ", last_ + 1,
                     " is missing, and all to ", page.newest()));
  }
  done_ = last_ >= page.newest();
  return absl::OkStatus();
}

std::string AuditChecker::Summary() const {
  return absl::StrCat(lines_, " lines, chain whole; newest hash ",
                      absl::BytesToHexString(hash_.value_or("")), "\n");
}

}  // namespace pactrain::coordinator
