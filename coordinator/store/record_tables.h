// How records lie in the tables of the journal, and how they are read back.
#ifndef PACTRAIN_COORDINATOR_STORE_RECORD_TABLES_H_
#define PACTRAIN_COORDINATOR_STORE_RECORD_TABLES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/journal_record.h"
#include "coordinator/store/sqlite.h"

namespace pactrain::coordinator {

inline constexpr int kSchemaVersion = 9;
// kMigrations[v] brings a database of schema version v to v + 1; version 0 is
// an empty one.
extern const char* const kMigrations[kSchemaVersion];

// Writes one record; the caller holds a transaction.
absl::Status WriteRecord(Database& database, const JournalRecord& record);
// Everything as if all records had been applied in order.
// DataLoss: a row that cannot have been written by us.
absl::StatusOr<Recovered> ReadRecords(Database& database);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_RECORD_TABLES_H_
