#include "coordinator/store/journal_file.h"

#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/store/record_tables.h"
#include "protocol/proto_check.h"

namespace pactrain::coordinator {
namespace {

// Whose writers are remembered; an agent that was away for more openings than
// that is refused, and has to be restarted.
constexpr uint64_t kMaxWriters = 10000;

}  // namespace

absl::StatusOr<int> LockStateDir(const OwnFolder& folder,
                                 const std::string& dir) {
  ASSIGN_OR_RETURN(const int lock, folder.OpenFile("lock"));
  if (flock(lock, LOCK_EX | LOCK_NB) == 0) return lock;
  const int error = errno;
  close(lock);
  if (error != EWOULDBLOCK) {
    return absl::UnavailableError(
        absl::StrCat(dir, "/lock: cannot lock: ", std::strerror(error)));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "state directory ", dir,
      " is in use by another coordinator: stop it, or name another "
      "--state-dir"));
}

absl::StatusOr<uint64_t> SchemaVersionOf(Database& database) {
  uint64_t version = 0;
  RETURN_IF_ERROR(
      database.Prepare("PRAGMA user_version").Run([&](const Statement& row) {
        version = row.Integer(0);
        return absl::OkStatus();
      }));
  return version;
}

absl::Status Migrate(Database& database) {
  ASSIGN_OR_RETURN(uint64_t version, SchemaVersionOf(database));
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the journal has schema version ", version,
                     ", this coordinator knows up to ", kSchemaVersion,
                     ": it was written by a newer one; use that"));
  }
  if (version == kSchemaVersion) return absl::OkStatus();
  return database.Transaction([&]() -> absl::Status {
    for (; version < kSchemaVersion; ++version) {
      RETURN_IF_ERROR(database.Execute(kMigrations[version]));
    }
    return database.Execute(
        absl::StrCat("PRAGMA user_version = ", kSchemaVersion));
  });
}

absl::StatusOr<Meta> ReadMeta(Database& database) {
  Meta meta;
  RETURN_IF_ERROR(database.Prepare("SELECT key, value FROM meta")
                      .Run([&](const Statement& row) {
                        meta[row.Text(0)] = row.Text(1);
                        return absl::OkStatus();
                      }));
  return meta;
}

absl::Status WriteMeta(Database& database, const Meta& meta) {
  for (const auto& [key, value] : meta) {
    RETURN_IF_ERROR(database.Write("INSERT OR REPLACE INTO meta VALUES (?, ?)",
                                   key, value));
  }
  return absl::OkStatus();
}

absl::StatusOr<base::Digest> NewId() {
  base::Digest id;
  if (getrandom(&id, sizeof id, 0) != sizeof id) {
    return absl::UnavailableError("no random bytes for an id");
  }
  return id;
}

absl::Status WriteHistory(Database& db, const Writer& writer) {
  RETURN_IF_ERROR(
      db.Write("INSERT INTO writers VALUES (NULL,?1,?2) ON CONFLICT (id) "
               "DO UPDATE SET batches=?2",
               Blob{protocol::WriteDigest(writer.id)}, writer.batches));
  if (writer.batches > 1) return absl::OkStatus();
  return db.Write(
      "DELETE FROM writers WHERE number <= "
      "(SELECT max(number) FROM writers) - ?",
      kMaxWriters);
}

absl::StatusOr<std::vector<Writer>> ReadHistory(Database& db) {
  std::vector<Writer> writers;
  RETURN_IF_ERROR(
      db.Prepare("SELECT id, batches FROM writers ORDER BY number")
          .Run([&](const Statement& row) -> absl::Status {
            const auto id =
                protocol::ReadDigest("writers.id", row.Text(0), true);
            if (!id.ok() || row.Integer(1) == 0) {
              return absl::DataLossError("journal: a damaged row of writers");
            }
            writers.push_back({*id, row.Integer(1)});
            return absl::OkStatus();
          }));
  return writers;
}

}  // namespace pactrain::coordinator
