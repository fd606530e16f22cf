// What a journal's file needs, whoever opens it: one user at a time, and the
// newest schema.
#ifndef PACTRAIN_COORDINATOR_STORE_JOURNAL_FILE_H_
#define PACTRAIN_COORDINATOR_STORE_JOURNAL_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_JOURNAL_FILE_H_
