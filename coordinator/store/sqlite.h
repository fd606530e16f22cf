// A thin RAII shell over SQLite's C API: statements with typed values, errors
// as absl::Status.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_STORE_SQLITE_H_
#define PACTRAIN_COORDINATOR_STORE_SQLITE_H_

#include <sqlite3.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pactrain::coordinator {

class Database;

// A value of a statement that is no text.
struct Blob {
  absl::string_view bytes;
};

// One prepared statement with its values. Not to outlive its Database.
class Statement {
 public:
  // Runs it once; for each row calls `row` (which reads columns).
  absl::Status Run(
      const std::function<absl::Status(const Statement&)>& row = {});

  uint64_t Integer(int column) const;
  std::string Text(int column) const;  // Also of a blob.

 private:
  friend class Database;
  Statement(Database* database, sqlite3_stmt* statement, absl::Status status)
      : database_(database),
        statement_(statement),
        status_(std::move(status)) {}
  void Bind(uint64_t value);
  void Bind(absl::string_view text);
  void Bind(Blob blob);
  void Check(int result);

  struct Finalizer {
    void operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
  };
  Database* database_;
  std::unique_ptr<sqlite3_stmt, Finalizer> statement_;
  absl::Status status_;  // The first error of preparing or binding.
  int bound_ = 0;
};

class Database {
 public:
  // Opens or creates a file. Errors as below.
  static absl::StatusOr<std::unique_ptr<Database>> Open(
      const std::string& path);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // With the values of its parameters in order: integers, texts and Blobs.
  // Errors of a bad statement come out of Statement::Run().
  template <typename... Values>
  Statement Prepare(absl::string_view sql, const Values&... values) {
    Statement statement = Parse(sql);
    (statement.Bind(values), ...);
    return statement;
  }
  // The same of one that gives no rows, at once.
  template <typename... Values>
  absl::Status Write(absl::string_view sql, const Values&... values) {
    return Prepare(sql, values...).Run();
  }
  // Statements without parameters and rows.
  absl::Status Execute(const std::string& sql);
  // `body` within a transaction: all of it, durably, or nothing.
  absl::Status Transaction(const std::function<absl::Status()>& body);

  // All of it, as it is at one moment, in the place of all of `other`; whoever
  // writes it meanwhile is not disturbed.
  absl::Status CopyTo(Database& other);

  // The last error. ResourceExhausted: disk full. DataLoss: not a database or
  // damaged. Unavailable: anything else. Names the file.
  absl::Status Error(absl::string_view doing) const;

 private:
  Database(const std::string& path, sqlite3* handle)
      : path_(path), handle_(handle) {}
  Statement Parse(absl::string_view sql);
  std::string path_;
  sqlite3* handle_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_SQLITE_H_
