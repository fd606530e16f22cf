#include "coordinator/store/sqlite_journal.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/audit/chain.h"
#include "coordinator/store/backup.h"
#include "coordinator/store/journal_file.h"
#include "coordinator/store/own_folder.h"
#include "coordinator/store/record_tables.h"
#include "protocol/proto_check.h"

namespace pactrain::coordinator {
namespace {

// As text: 64 hex digits.
absl::StatusOr<std::string> NewSecret() {
  base::Secret secret;
  if (getrandom(secret.bytes.data(), base::Secret::kBytes, 0) !=
      base::Secret::kBytes) {
    return absl::UnavailableError("no random bytes for the cluster's secret");
  }
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(secret.bytes.data()),
                        base::Secret::kBytes));
}

absl::StatusOr<base::Secret> ReadSecret(const std::string& dir,
                                        const std::string& text) {
  if (text.size() != 2 * base::Secret::kBytes ||
      text.find_first_not_of("0123456789abcdef") != text.npos) {
    return absl::DataLossError(absl::StrCat(
        "state directory ", dir, ": the cluster's secret is no 64 hex digits"));
  }
  base::Secret secret;
  const std::string bytes = absl::HexStringToBytes(text);
  std::memcpy(secret.bytes.data(), bytes.data(), bytes.size());
  return secret;
}

absl::Status ReadNumber(const std::string& dir, Meta& meta,
                        const std::string& key, uint64_t& number) {
  if (absl::SimpleAtoi(meta[key], &number)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("state directory ", dir, ": ", key, " '", meta[key], "'"));
}

// SQLite gives the files beside it the mode of the file itself.
absl::Status MakeFilesPrivate(const OwnFolder& folder,
                              const std::string& name) {
  ASSIGN_OR_RETURN(const int fd, folder.OpenFile(name));
  close(fd);
  for (const char* part : {"-wal", "-shm", "-journal"}) {
    RETURN_IF_ERROR(folder.MakePrivate(name + part));
  }
  return absl::OkStatus();
}

// As AuditFacts::changed.
std::string WhatChanged(const AuditTable& audit, uint64_t max_lines) {
  AuditChain chain(max_lines);
  while (!chain.done()) {
    const absl::StatusOr<protocol::AuditPage> page = audit.Read(chain.last());
    absl::Status checked = page.status();
    if (page.ok()) checked = chain.Check(*page);
    if (!checked.ok()) return std::string(checked.message());
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteJournal>> SqliteJournal::Open(
    const std::string& dir, const std::string& cluster,
    uint64_t max_audit_lines) {
  std::unique_ptr<SqliteJournal> journal(new SqliteJournal());
  journal->dir_ = dir;
  ASSIGN_OR_RETURN(const OwnFolder folder, OwnFolder::Open(dir));
  ASSIGN_OR_RETURN(journal->lock_, LockStateDir(folder, dir));
  RETURN_IF_ERROR(MakeFilesPrivate(folder, "journal.db"));
  ASSIGN_OR_RETURN(journal->database_, Database::Open(dir + "/journal.db"));
  RETURN_IF_ERROR(
      journal->database_->Execute("PRAGMA journal_mode=WAL; PRAGMA "
                                  "synchronous=FULL; PRAGMA busy_timeout=0"));
  RETURN_IF_ERROR(Migrate(*journal->database_));
  RETURN_IF_ERROR(journal->BeginTerm(dir, cluster));
  ASSIGN_OR_RETURN(journal->recovered_, ReadRecords(*journal->database_));
  ASSIGN_OR_RETURN(journal->audit_,
                   AuditTable::Open(*journal->database_, max_audit_lines));
  journal->audit_facts_.at_start = journal->audit_->number();
  journal->audit_facts_.changed =
      WhatChanged(*journal->audit_, max_audit_lines);
  return journal;
}

SqliteJournal::~SqliteJournal() {
  database_.reset();
  if (lock_ >= 0) close(lock_);
}

absl::Status SqliteJournal::BeginTerm(const std::string& dir,
                                      const std::string& cluster) {
  ASSIGN_OR_RETURN(Meta meta, ReadMeta(*database_));
  if (meta.empty()) {
    ASSIGN_OR_RETURN(const base::Digest id, NewId());
    meta = {{"cluster_id", id.ToString()}, {"cluster", cluster}, {"term", "0"}};
  }
  if (meta["cluster"] != cluster) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state directory ", dir, " belongs to cluster '", meta["cluster"],
        "', this coordinator is told to serve cluster '", cluster,
        "': correct --cluster or --state-dir"));
  }
  RETURN_IF_ERROR(ReadNumber(dir, meta, "term", identity_.term));
  std::string& secret = meta["cluster_secret"];
  // Missing where an older version made the journal.
  if (secret.empty()) {
    ASSIGN_OR_RETURN(secret, NewSecret());
  }
  ASSIGN_OR_RETURN(cluster_secret_, ReadSecret(dir, secret));
  ASSIGN_OR_RETURN(std::vector<Writer> writers, ReadHistory(*database_));
  ASSIGN_OR_RETURN(const base::Digest self, NewId());
  base::Digest restored;
  if (const auto it = meta.find("restored_writer"); it != meta.end()) {
    RETURN_IF_ERROR(
        ReadNumber(dir, meta, "first_generation", identity_.first_generation));
    ASSIGN_OR_RETURN(restored, protocol::ReadDigest(
                                   "restored_writer",
                                   absl::HexStringToBytes(it->second), true));
  }
  // Missing where an older version restored it.
  if (meta.contains(kRestoredLine)) {
    RETURN_IF_ERROR(
        ReadNumber(dir, meta, kRestoredLine, audit_facts_.restored));
  }
  if (meta.contains(kRestoredTerm)) {
    RETURN_IF_ERROR(
        ReadNumber(dir, meta, kRestoredTerm, audit_facts_.restored_term));
  }
  // To make it is the first batch, so that agents hear of the audit log's end
  // before anything is formed.
  const bool made = writers.empty();
  identity_.history = History(std::move(writers), self, restored);
  if (made) identity_.history.Wrote();
  ++identity_.term;
  identity_.cluster_id = meta["cluster_id"];
  meta["term"] = absl::StrCat(identity_.term);
  return database_->Transaction([&]() -> absl::Status {
    if (made) {
      RETURN_IF_ERROR(
          WriteHistory(*database_, identity_.history.writers().back()));
    }
    return WriteMeta(*database_, meta);
  });
}

absl::Status SqliteJournal::Append(
    const std::vector<JournalRecord>& records,
    const std::vector<protocol::AuditEvent>& audit) {
  AuditTable lines = *audit_;
  History history = identity_.history;
  if (!records.empty()) history.Wrote();
  RETURN_IF_ERROR(database_->Transaction([&]() -> absl::Status {
    for (const JournalRecord& record : records) {
      RETURN_IF_ERROR(WriteRecord(*database_, record));
    }
    if (!records.empty()) {
      RETURN_IF_ERROR(WriteHistory(*database_, history.writers().back()));
    }
    for (const protocol::AuditEvent& event : audit) {
      RETURN_IF_ERROR(lines.Write(event));
    }
    // An empty transaction would not touch the disk.
    if (records.empty() && audit.empty()) {
      return WriteMeta(*database_, {{"term", absl::StrCat(identity_.term)}});
    }
    return absl::OkStatus();
  }));
  audit_ = lines;
  identity_.history = std::move(history);
  return absl::OkStatus();
}

absl::StatusOr<protocol::AuditPage> SqliteJournal::ReadAudit(uint64_t after) {
  return audit_->Read(after);
}

AuditFacts SqliteJournal::audit() const {
  AuditFacts facts = audit_facts_;
  facts.newest = audit_->number();
  facts.hash = audit_->hash();
  facts.cut = audit_->cut();
  return facts;
}

absl::StatusOr<std::string> SqliteJournal::Backup(const std::string& name) {
  if (backing_up_.exchange(true)) {
    return absl::UnavailableError(
        "another backup is being written; ask again once it is done");
  }
  auto path = WriteBackup(dir_, name);
  backing_up_ = false;
  return path;
}

}  // namespace pactrain::coordinator
