// How the journal's history (coordinator/core/history.h) lies in its database;
// the table is made by kMigrations.
#ifndef PACTRAIN_COORDINATOR_STORE_HISTORY_TABLE_H_
#define PACTRAIN_COORDINATOR_STORE_HISTORY_TABLE_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/history.h"
#include "coordinator/store/sqlite.h"

namespace pactrain::coordinator {

// How much this opening has written, in the transaction of the batch that
// brings it there.
absl::Status WriteHistory(Database& database, const Writer& writer);
// In order. DataLoss: a row that cannot have been written by us.
absl::StatusOr<std::vector<Writer>> ReadHistory(Database& database);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_HISTORY_TABLE_H_
