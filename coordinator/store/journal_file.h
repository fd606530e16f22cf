// What a journal's file needs, whoever opens it: one user at a time, the newest
// schema, and what it holds of itself.
#ifndef PACTRAIN_COORDINATOR_STORE_JOURNAL_FILE_H_
#define PACTRAIN_COORDINATOR_STORE_JOURNAL_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/digest.h"
#include "coordinator/core/history.h"
#include "coordinator/store/own_folder.h"
#include "coordinator/store/sqlite.h"

namespace pactrain::coordinator {

// Of a state directory; the caller closes it, which gives it free.
// FailedPrecondition: another coordinator has it.
absl::StatusOr<int> LockStateDir(const OwnFolder& folder,
                                 const std::string& dir);

// Brings the tables to kSchemaVersion. FailedPrecondition: a newer one is
// there.
absl::Status Migrate(Database& database);

absl::StatusOr<uint64_t> SchemaVersionOf(Database& database);

// What is known of the journal as a whole, by name: its cluster, term, ...
using Meta = std::map<std::string, std::string>;
// Where a backup was restored: the audit log's line that says so, and the
// highest term that there can have been before.
inline constexpr char kRestoredLine[] = "restored_line";
inline constexpr char kRestoredTerm[] = "restored_term";
absl::StatusOr<Meta> ReadMeta(Database& database);
// Names that are not in `meta` stay. The caller holds a transaction.
absl::Status WriteMeta(Database& database, const Meta& meta);

// How much this opening has written, in the transaction of the batch that
// brings it there.
absl::Status WriteHistory(Database& database, const Writer& writer);
// In order. DataLoss: a row that cannot have been written by us.
absl::StatusOr<std::vector<Writer>> ReadHistory(Database& database);

// Random: of a cluster, or of somebody who writes. Unavailable: the system has
// no random bytes.
absl::StatusOr<base::Digest> NewId();

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_JOURNAL_FILE_H_
