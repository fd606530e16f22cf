// The journal in one SQLite file (WAL, synchronous=FULL) of a state directory.
//
// `DIR/journal.db` holds it, `DIR/lock` is locked while it is open. Old
// generations, decisions and mask sets are dropped beyond the newest
// kMaxHistory of each group, and the oldest lines of the audit log beyond
// protocol::kMaxAuditLines. Nobody but its owner may use the file: the
// cluster's secret is in it.
#ifndef PACTRAIN_COORDINATOR_STORE_SQLITE_JOURNAL_H_
#define PACTRAIN_COORDINATOR_STORE_SQLITE_JOURNAL_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/audit_table.h"
#include "coordinator/store/journal.h"
#include "coordinator/store/sqlite.h"

namespace pactrain::coordinator {

class SqliteJournal : public Journal {
 public:
  // Opens the journal of cluster `cluster` in `dir`, made if missing, and
  // begins a new term.
  //   FailedPrecondition: another coordinator has it open, it is another
  //                       cluster's, a newer version wrote it, or others may
  //                       use the file and that cannot be changed.
  //   ResourceExhausted:  the disk is full.
  //   DataLoss:           the file is damaged.
  //   Unavailable:        it cannot be read or written.
  static absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(
      const std::string& dir, const std::string& cluster,
      uint64_t max_audit_lines = protocol::kMaxAuditLines);
  ~SqliteJournal() override;

  const CoordinatorState::Identity& identity() const override {
    return identity_;
  }
  const base::Secret& cluster_secret() const override {
    return cluster_secret_;
  }
  const Recovered& recovered() const override { return recovered_; }
  absl::Status Append(const std::vector<JournalRecord>& records,
                      const std::vector<protocol::AuditEvent>& audit) override;
  absl::StatusOr<protocol::AuditPage> ReadAudit(uint64_t after) override;
  AuditFacts audit() const override;
  absl::StatusOr<std::string> AuditHash(uint64_t number) override {
    return audit_->HashOf(number);
  }
  absl::StatusOr<std::string> Backup(const std::string& name) override;

 private:
  SqliteJournal() = default;
  absl::Status BeginTerm(const std::string& dir, const std::string& cluster);

  std::string dir_;
  int lock_ = -1;
  std::atomic<bool> backing_up_ = false;
  std::unique_ptr<Database> database_;
  CoordinatorState::Identity identity_;
  base::Secret cluster_secret_;
  Recovered recovered_;
  std::optional<AuditTable> audit_;
  AuditFacts audit_facts_;  // But for its ends.
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_SQLITE_JOURNAL_H_
