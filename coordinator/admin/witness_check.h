// Holds what agents keep of the audit log against its lines.
//
// An agent keeps the newest line that it was told in each term. The log says
// itself with which line a term began, so that the first line that is missing
// can be named.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_ADMIN_WITNESS_CHECK_H_
#define PACTRAIN_COORDINATOR_ADMIN_WITNESS_CHECK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pactrain/v1/admin.pb.h"
#include "protocol/audit_heads.h"

namespace pactrain::coordinator {

class WitnessCheck {
 public:
  // REQUIRES: before the first See().
  void Add(const std::string& agent, const protocol::AuditHead& head);
  // Each line of the log, oldest first, checked by AuditChain.
  void See(const v1::AuditLine& line);
  // For people, once all were seen: who has seen what. DataLoss: lines are
  // missing that an agent has seen; names the first.
  absl::StatusOr<std::string> Result() const;

 private:
  struct Kept {
    std::string agent;
    protocol::AuditHead head;
  };
  struct Started {
    uint64_t line, term;
  };
  // Where the log ended when the term after this one began; now: none did.
  struct End {
    uint64_t line = 0;
    bool restored = false;  // A backup was, there.
  };
  End EndOf(uint64_t term) const;

  std::vector<Kept> kept_;
  std::map<uint64_t, std::string> hashes_;  // Of the lines that are asked for.
  std::vector<Started> started_;
  std::set<uint64_t> restored_;
  uint64_t oldest_ = 0, newest_ = 0;  // 0: none was seen.
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_WITNESS_CHECK_H_
