#include "coordinator/store/backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "coordinator/store/audit_table.h"
#include "coordinator/store/journal_file.h"
#include "coordinator/store/own_folder.h"
#include "coordinator/store/sqlite.h"
#include "protocol/proto_check.h"
#include "protocol/types.h"

namespace pactrain::coordinator {
namespace {

// What is being written has no backup's name.
constexpr char kPart[] = ".part";

absl::Status SystemError(const std::string& path, absl::string_view doing) {
  const std::string text =
      absl::StrCat(path, ": cannot ", doing, ": ", std::strerror(errno));
  return errno == ENOSPC || errno == EFBIG ? absl::ResourceExhaustedError(text)
                                           : absl::UnavailableError(text);
}

absl::Status CheckRoom(const std::string& folder) {
  size_t backups = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    backups += absl::EndsWith(entry.path().string(), kPart) ? 0 : 1;
  }
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(folder, ": cannot be listed: ", error.message()));
  }
  if (backups < kMaxBackups) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(folder, " holds ", backups, " files, and at most ",
                   kMaxBackups, " are allowed: bring some elsewhere"));
}

// Gives it its name, whose file does not exist, for good.
absl::Status Place(const std::string& part, const std::string& path) {
  if (renameat2(AT_FDCWD, part.c_str(), AT_FDCWD, path.c_str(),
                RENAME_NOREPLACE) != 0) {
    return SystemError(path, "be made");
  }
  const std::string folder = std::filesystem::path(path).parent_path();
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const absl::Status status =
      synced ? absl::OkStatus() : SystemError(folder, "be made durable");
  if (fd >= 0) close(fd);
  return status;
}

absl::Status CopyFile(const std::string& from, int to,
                      const std::string& part) {
  const int fd = open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const std::string named = absl::StrCat("--restore: ", from);
  if (fd < 0) return SystemError(named, "be read");
  const absl::Cleanup closed = [fd] { close(fd); };
  if (ftruncate(to, 0) != 0) return SystemError(part, "be emptied");
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0) return SystemError(named, "be read");
    if (got == 0) return absl::OkStatus();
    for (ssize_t done = 0; done < got;) {
      const ssize_t put = write(to, buffer + done, got - done);
      if (put < 0) return SystemError(part, "be written");
      done += put;
    }
  }
}

absl::Status NoBackup(const std::string& file, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(
      "--restore: ", file, " is no backup of a coordinator, or damaged (", why,
      "): take a file that pactrain-admin backup wrote"));
}

absl::Status CheckWhole(Database& db, const std::string& file) {
  std::string found;
  const absl::Status checked =
      db.Prepare("PRAGMA quick_check(1)").Run([&](const Statement& row) {
        found = row.Text(0);
        return absl::OkStatus();
      });
  if (absl::IsDataLoss(checked)) return NoBackup(file, checked.message());
  RETURN_IF_ERROR(checked);
  if (found != "ok") return NoBackup(file, found);
  ASSIGN_OR_RETURN(const uint64_t version, SchemaVersionOf(db));
  return version == 0 ? NoBackup(file, "it has no schema version")
                      : absl::OkStatus();
}

// Makes of a copy what goes on where nobody else has been.
absl::Status GoBeyond(Database& db, const std::string& file,
                      const std::string& cluster) {
  RETURN_IF_ERROR(CheckWhole(db, file));
  RETURN_IF_ERROR(Migrate(db));
  ASSIGN_OR_RETURN(Meta meta, ReadMeta(db));
  if (meta["cluster"] != cluster) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--restore: ", file, " is a backup of cluster '", meta["cluster"],
        "', and this coordinator is told to serve cluster '", cluster,
        "': correct --cluster, or take another"));
  }
  uint64_t term = 0, first = 0, newest = 0;
  if (!absl::SimpleAtoi(meta["term"], &term) ||
      (meta.contains("first_generation") &&
       !absl::SimpleAtoi(meta["first_generation"], &first))) {
    return absl::DataLossError(absl::StrCat(file, ": a damaged table meta"));
  }
  RETURN_IF_ERROR(db.Prepare("SELECT coalesce(max(generation), 0) FROM groups")
                      .Run([&](const Statement& row) {
                        newest = row.Integer(0);
                        return absl::OkStatus();
                      }));
  ASSIGN_OR_RETURN(const base::Digest id, NewId());
  meta["term"] = absl::StrCat(term + kBeyond);
  meta["first_generation"] = absl::StrCat(std::max(first, newest) + kBeyond);
  meta["restored_writer"] = absl::BytesToHexString(protocol::WriteDigest(id));
  ASSIGN_OR_RETURN(AuditTable audit,
                   AuditTable::Open(db, protocol::kMaxAuditLines));
  meta[kRestoredLine] = absl::StrCat(audit.number() + 1);
  meta[kRestoredTerm] = meta["term"];
  return db.Transaction([&]() -> absl::Status {
    RETURN_IF_ERROR(WriteMeta(db, meta));
    // What was prepared may have been taken back since.
    RETURN_IF_ERROR(
        db.Execute(absl::StrCat("UPDATE groups SET prepared_version = 0, "
                                "last_version = last_version + ",
                                kBeyond)));
    RETURN_IF_ERROR(WriteHistory(db, {id, 1}));
    return audit.Write({"state restored",
                        {"coordinator", ""},
                        "",
                        file,
                        "--restore",
                        absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::Now(),
                                         absl::UTCTimeZone())});
  });
}

}  // namespace

absl::StatusOr<std::string> WriteBackup(const std::string& dir,
                                        const std::string& name) {
  RETURN_IF_ERROR(protocol::CheckName("FILE", name));
  ASSIGN_OR_RETURN(const OwnFolder own, OwnFolder::Open(dir + "/backups"));
  // Whole, for whoever looks for it from elsewhere; it was found above.
  std::error_code found;
  const std::string folder =
      std::filesystem::absolute(dir + "/backups", found).lexically_normal();
  const std::string path = absl::StrCat(folder, "/", name);
  if (absl::EndsWith(name, kPart)) {
    return absl::InvalidArgumentError(
        absl::StrCat("FILE: '", name, "': what ends in ", kPart,
                     " counts as not finished; give another name"));
  }
  if (std::filesystem::exists(std::filesystem::symlink_status(path))) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is there already; give another name"));
  }
  RETURN_IF_ERROR(CheckRoom(folder));
  const std::string part = path + kPart;
  ASSIGN_OR_RETURN(const int fd, own.OpenFile(name + kPart));
  const bool emptied = ftruncate(fd, 0) == 0;
  close(fd);
  absl::Cleanup removed = [&] { unlink(part.c_str()); };
  if (!emptied) return SystemError(part, "be emptied");
  {
    ASSIGN_OR_RETURN(const auto from, Database::Open(dir + "/journal.db"));
    ASSIGN_OR_RETURN(const auto to, Database::Open(part));
    RETURN_IF_ERROR(from->CopyTo(*to));
  }
  RETURN_IF_ERROR(Place(part, path));
  std::move(removed).Cancel();
  return path;
}

absl::Status RestoreBackup(const std::string& file, const std::string& dir,
                           const std::string& cluster) {
  ASSIGN_OR_RETURN(const OwnFolder own, OwnFolder::Open(dir));
  ASSIGN_OR_RETURN(const int lock, LockStateDir(own, dir));
  const absl::Cleanup unlocked = [lock] { close(lock); };
  const std::string path = dir + "/journal.db";
  for (const char* const rest : {"", "-wal", "-journal"}) {
    if (std::filesystem::exists(std::filesystem::symlink_status(path + rest))) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, rest,
          " is there already, and --restore overwrites nothing: move the state "
          "directory away, or name another --state-dir"));
    }
  }
  const std::string part = path + kPart;
  ASSIGN_OR_RETURN(const int fd,
                   own.OpenFile(std::string("journal.db") + kPart));
  const absl::Cleanup removed = [&] { unlink(part.c_str()); };
  const absl::Status copied = CopyFile(file, fd, part);
  close(fd);
  RETURN_IF_ERROR(copied);
  {
    ASSIGN_OR_RETURN(const auto db, Database::Open(part));
    // One file until it has its name.
    const absl::Status one =
        db->Execute("PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL");
    if (absl::IsDataLoss(one)) {
      return NoBackup(file, one.message());
    }
    RETURN_IF_ERROR(one);
    RETURN_IF_ERROR(GoBeyond(*db, file, cluster));
  }
  return Place(part, path);
}

}  // namespace pactrain::coordinator
