// The audit log: a table whose lines are chained by hashes.
//
// Each line's hash covers its fields and the hash of the line before, so a
// changed, missing or added line breaks the chain (who may write the file can
// forge all of it from there on: compare the newest hash with one that was
// kept elsewhere). Beyond a number of lines the oldest are cut; the number and
// hash of the last one that was cut stay, so the rest is still checked from
// there.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_STORE_AUDIT_TABLE_H_
#define PACTRAIN_COORDINATOR_STORE_AUDIT_TABLE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/sqlite.h"
#include "protocol/audit.h"

namespace pactrain::coordinator {

class AuditTable {
 public:
  // Goes on where the table ends. With more than `max_lines` the oldest
  // protocol::kAuditCut are cut. REQUIRES: max_lines >= 1; the database
  // outlives this.
  static absl::StatusOr<AuditTable> Open(Database& database,
                                         uint64_t max_lines);

  // Adds a line; fields are cut at kMaxAuditText. The caller holds a
  // transaction; if that fails, this object is no longer good.
  absl::Status Write(const protocol::AuditEvent& event);
  // As Journal::ReadAudit().
  absl::StatusOr<protocol::AuditPage> Read(uint64_t after) const;
  // Of the newest line; 0: there is none.
  uint64_t number() const { return newest_.number; }
  const std::string& hash() const { return newest_.hash; }
  // Of the last line that is kept no more; 0: none was cut.
  uint64_t cut() const { return cut_.number; }
  // Empty: it is kept no more, or there is none.
  absl::StatusOr<std::string> HashOf(uint64_t number) const;

 private:
  struct End {
    uint64_t number = 0;
    std::string hash;
  };
  explicit AuditTable(Database& database, uint64_t max_lines)
      : database_(&database), max_lines_(max_lines) {}
  absl::StatusOr<End> ReadEnd(absl::string_view name) const;
  absl::Status WriteEnd(absl::string_view name, const End& end);
  absl::Status CutOldest();

  Database* database_;
  uint64_t max_lines_;
  End cut_, newest_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_AUDIT_TABLE_H_
