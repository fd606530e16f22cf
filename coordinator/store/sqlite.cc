#include "coordinator/store/sqlite.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace pactrain::coordinator {

void Statement::Bind(uint64_t value) {
  if (!status_.ok()) return;
  Check(sqlite3_bind_int64(statement_.get(), ++bound_,
                           static_cast<int64_t>(value)));
}

void Statement::Bind(absl::string_view text) {
  if (!status_.ok()) return;
  Check(sqlite3_bind_text(statement_.get(), ++bound_, text.data(),
                          static_cast<int>(text.size()), SQLITE_TRANSIENT));
}

void Statement::Bind(Blob blob) {
  if (!status_.ok()) return;
  // A null pointer would bind NULL, not an empty blob.
  const char* data = blob.bytes.empty() ? "" : blob.bytes.data();
  Check(sqlite3_bind_blob(statement_.get(), ++bound_, data,
                          static_cast<int>(blob.bytes.size()),
                          SQLITE_TRANSIENT));
}

void Statement::Check(int result) {
  if (result != SQLITE_OK) status_ = database_->Error("bind");
}

absl::Status Statement::Run(
    const std::function<absl::Status(const Statement&)>& row) {
  RETURN_IF_ERROR(status_);
  while (true) {
    const int result = sqlite3_step(statement_.get());
    if (result == SQLITE_DONE) break;
    if (result != SQLITE_ROW) return database_->Error("run");
    if (row) RETURN_IF_ERROR(row(*this));
  }
  return absl::OkStatus();
}

uint64_t Statement::Integer(int column) const {
  return static_cast<uint64_t>(sqlite3_column_int64(statement_.get(), column));
}

std::string Statement::Text(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int bytes = sqlite3_column_bytes(statement_.get(), column);
  return data == nullptr ? ""
                         : std::string(static_cast<const char*>(data), bytes);
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(
    const std::string& path) {
  sqlite3* handle = nullptr;
  const int flags =
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX;
  const int result = sqlite3_open_v2(path.c_str(), &handle, flags, nullptr);
  // SQLite gives a handle also with most errors.
  std::unique_ptr<Database> database(new Database(path, handle));
  if (result != SQLITE_OK) return database->Error("open");
  sqlite3_extended_result_codes(handle, 1);
  return database;
}

Database::~Database() { sqlite3_close(handle_); }

Statement Database::Parse(absl::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  absl::Status status;
  if (sqlite3_prepare_v2(handle_, sql.data(), static_cast<int>(sql.size()),
                         &statement, nullptr) != SQLITE_OK) {
    status = Error("prepare");
  }
  return Statement(this, statement, std::move(status));
}

absl::Status Database::Execute(const std::string& sql) {
  if (sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) !=
      SQLITE_OK) {
    return Error("execute");
  }
  return absl::OkStatus();
}

absl::Status Database::Transaction(const std::function<absl::Status()>& body) {
  RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status status = body();
  if (status.ok()) status = Execute("COMMIT");
  if (!status.ok() && sqlite3_get_autocommit(handle_) == 0) {
    // Its own error would say nothing new.
    Execute("ROLLBACK").IgnoreError();
  }
  return status;
}

absl::Status Database::CopyTo(Database& other) {
  sqlite3_backup* const backup =
      sqlite3_backup_init(other.handle_, "main", handle_, "main");
  if (backup == nullptr) return other.Error("copy to");
  sqlite3_backup_step(backup, -1);  // finish() has its error.
  if (sqlite3_backup_finish(backup) != SQLITE_OK) return other.Error("copy to");
  return absl::OkStatus();
}

absl::Status Database::Error(absl::string_view doing) const {
  const int code = handle_ == nullptr ? SQLITE_NOMEM : sqlite3_errcode(handle_);
  const std::string text = absl::StrCat(
      path_, ": cannot ", doing, ": ",
      handle_ == nullptr ? "out of memory" : sqlite3_errmsg(handle_));
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(text);
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      return absl::DataLossError(text);
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace pactrain::coordinator
