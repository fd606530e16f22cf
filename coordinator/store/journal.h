// Where the coordinator keeps what must survive it.
//
// Rules: what Append() has accepted survives any crash; a batch is kept as a
// whole or not at all; one process at a time holds a journal; every opening has
// a higher term than all before, durable before it is handed out.
//
// Thread-compatible (the driver calls it under its mutex), but for Backup().
#ifndef PACTRAIN_COORDINATOR_STORE_JOURNAL_H_
#define PACTRAIN_COORDINATOR_STORE_JOURNAL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/secret.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/journal_record.h"
#include "protocol/audit.h"

namespace pactrain::coordinator {

// What a journal knows of its audit log. Lines are numbers; 0: none.
struct AuditFacts {
  uint64_t newest = 0;
  std::string hash = {};  // Of that line.
  uint64_t cut = 0;       // The newest that is kept no more.
  uint64_t at_start = 0;  // The newest when the journal was opened.
  // What was not as it had been written then: "line 41 is missing, 58 comes
  // next"; empty: it all was.
  std::string changed = {};
  uint64_t restored = 0;  // That says that a backup was restored, the newest.
  uint64_t restored_term = 0;  // No coordinator before that had a higher one.
};

class Journal {
 public:
  virtual ~Journal() = default;

  // Cluster id, the term of this opening, and the history with all that was
  // appended.
  virtual const CoordinatorState::Identity& identity() const = 0;
  // Random, made once for the cluster: what it derives keys from. Never told.
  virtual const base::Secret& cluster_secret() const = 0;
  // What was there when the journal was opened.
  virtual const Recovered& recovered() const = 0;

  // Makes the records durable, in order; blocks until they are. With nothing
  // to keep it only finds out whether writing works.
  //   ResourceExhausted: the disk is full. Unavailable: any other I/O error.
  // The lines of the audit log are kept with them, all or nothing.
  virtual absl::Status Append(
      const std::vector<JournalRecord>& records,
      const std::vector<protocol::AuditEvent>& audit) = 0;

  // Lines with numbers above `after`, at most kMaxAuditPage; those that are
  // kept no more are left out. Unavailable, DataLoss: they cannot be read.
  virtual absl::StatusOr<protocol::AuditPage> ReadAudit(uint64_t after) = 0;

  // As of what was appended.
  virtual AuditFacts audit() const = 0;
  // Of that line; empty: it is kept no more, or there is none.
  // Unavailable, DataLoss: it cannot be read.
  virtual absl::StatusOr<std::string> AuditHash(uint64_t number) = 0;

  // Copies all of it into a new file of that name, and returns its path. Blocks
  // for seconds; thread-safe, and others may call the rest meanwhile.
  //   Unavailable: another one is under way. Others: as WriteBackup().
  virtual absl::StatusOr<std::string> Backup(const std::string& name) = 0;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_JOURNAL_H_
