// Follows the chain of the audit log's hashes over all its lines.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_AUDIT_CHAIN_H_
#define PACTRAIN_COORDINATOR_AUDIT_CHAIN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "protocol/audit.h"

namespace pactrain::coordinator {

class AuditChain {
 public:
  // Of a log that keeps at most so many lines.
  explicit AuditChain(uint64_t max_lines = protocol::kMaxAuditLines)
      : max_lines_(max_lines) {}

  // The page of the lines after last(), first of those after 0. DataLoss: names
  // the first line that is not what was written.
  absl::Status Check(const protocol::AuditPage& page);
  uint64_t last() const { return last_; }
  bool done() const { return done_; }
  uint64_t lines() const { return lines_; }
  // Of line last().
  std::string hash() const { return hash_.value_or(""); }

 private:
  absl::Status Begin(const protocol::AuditPage& page);
  absl::Status CheckLine(const protocol::AuditLine& line);

  const uint64_t max_lines_;
  std::optional<std::string> hash_;  // None: before the first.
  uint64_t last_ = 0;
  uint64_t lines_ = 0;
  bool done_ = false;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_AUDIT_CHAIN_H_
