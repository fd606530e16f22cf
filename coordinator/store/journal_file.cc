#include "coordinator/store/journal_file.h"

#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/store/record_tables.h"

namespace pactrain::coordinator {

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

}  // namespace pactrain::coordinator
