#include "coordinator/audit/chain.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tls/chain_hash.h"

namespace pactrain::coordinator {

absl::Status AuditChain::Begin(const protocol::AuditPage& page) {
  hash_ = page.before;
  // Without any that was cut number 1 comes first.
  if (hash_->empty() || page.lines.empty()) return absl::OkStatus();
  last_ = page.lines[0].number - 1;
  const uint64_t kept = page.newest - std::min(page.newest, last_);
  if (kept + std::min(protocol::kAuditCut, max_lines_) > max_lines_) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("lines 1 to ", last_, " are missing: the oldest are cut of ",
                   "more than ", max_lines_, ", and only ", kept, " are left"));
}

absl::Status AuditChain::CheckLine(const protocol::AuditLine& line) {
  if (line.number != last_ + 1) {
    return absl::DataLossError(absl::StrCat("line ", last_ + 1, " is missing, ",
                                            line.number, " comes next"));
  }
  if (line.hash != base::ChainHash(*hash_, line.Fields())) {
    return absl::DataLossError(
        absl::StrCat("line ", line.number,
                     " is not what was written, or what was before it is not"));
  }
  last_ = line.number;
  hash_ = line.hash;
  ++lines_;
  return absl::OkStatus();
}

absl::Status AuditChain::Check(const protocol::AuditPage& page) {
  if (!hash_) RETURN_IF_ERROR(Begin(page));
  for (const protocol::AuditLine& line : page.lines) {
    RETURN_IF_ERROR(CheckLine(line));
  }
  if (page.lines.empty() && last_ != page.newest) {
    return absl::DataLossError(absl::StrCat(
        "line ", last_ + 1, " is missing, and all to ", page.newest));
  }
  done_ = last_ >= page.newest;
  return absl::OkStatus();
}

}  // namespace pactrain::coordinator
