// What pactrain-admin says of the audit log, and whether its chain is whole.
#ifndef PACTRAIN_COORDINATOR_ADMIN_AUDIT_H_
#define PACTRAIN_COORDINATOR_ADMIN_AUDIT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "pactrain/v1/admin.pb.h"

namespace pactrain::coordinator {

// One line, without control characters: texts of strangers are in it.
std::string AuditText(const v1::AuditLine& line);

// Follows the chain of hashes over all lines, oldest first.
//
// Thread-compatible.
class AuditChecker {
 public:
  // The answer for the lines after last(). DataLoss: names the first line that
  // is not what was written.
  absl::Status Check(const v1::ReadAuditResponse& page);
  uint64_t last() const { return last_; }
  bool done() const { return done_; }
  // "3 lines, chain whole; newest hash ..."
  std::string Summary() const;

 private:
  absl::Status CheckLine(const v1::AuditLine& line);

  std::optional<std::string> hash_;  // Of line last_; none: before the first.
  uint64_t last_ = 0;
  uint64_t lines_ = 0;
  bool done_ = false;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_AUDIT_H_
