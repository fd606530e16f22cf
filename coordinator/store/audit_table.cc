#include "coordinator/store/audit_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/one_line.h"
#include "base/status_macros.h"
#include "base/tls/chain_hash.h"
#include "protocol/proto_check.h"

namespace pactrain::coordinator {

using protocol::AuditLine;
using protocol::AuditPage;

absl::StatusOr<AuditTable> AuditTable::Open(Database& database,
                                            uint64_t max_lines) {
  AuditTable table(database, max_lines);
  ASSIGN_OR_RETURN(table.cut_, table.ReadEnd("cut"));
  ASSIGN_OR_RETURN(table.newest_, table.ReadEnd("newest"));
  return table;
}

absl::StatusOr<AuditTable::End> AuditTable::ReadEnd(
    absl::string_view name) const {
  End end;
  RETURN_IF_ERROR(
      database_
          ->Prepare("SELECT number, hash FROM audit_ends WHERE name=?", name)
          .Run([&](const Statement& row) {
            end = {row.Integer(0), row.Text(1)};
            return absl::OkStatus();
          }));
  return end;
}

absl::Status AuditTable::WriteEnd(absl::string_view name, const End& end) {
  return database_->Write("UPDATE audit_ends SET number=?, hash=? WHERE name=?",
                          end.number, Blob{end.hash}, name);
}

absl::Status AuditTable::Write(const protocol::AuditEvent& event) {
  AuditLine line;
  line.number = newest_.number + 1;
  line.event = event;
  for (std::string* text :
       {&line.event.kind, &line.event.caller.who, &line.event.caller.serial,
        &line.event.job, &line.event.what, &line.event.why, &line.event.at}) {
    *text = protocol::WriteText(base::OneLine(*text), protocol::kMaxAuditText);
  }
  line.hash = base::ChainHash(newest_.hash, line.Fields());
  RETURN_IF_ERROR(database_->Write(
      "INSERT INTO audit VALUES (?,?,?,?,?,?,?,?,?)", line.number,
      line.event.at, line.event.kind, line.event.caller.who,
      line.event.caller.serial, line.event.job, line.event.what, line.event.why,
      Blob{line.hash}));
  newest_ = {line.number, line.hash};
  RETURN_IF_ERROR(WriteEnd("newest", newest_));
  return newest_.number - cut_.number > max_lines_ ? CutOldest()
                                                   : absl::OkStatus();
}

absl::Status AuditTable::CutOldest() {
  End cut{cut_.number + std::min(protocol::kAuditCut, max_lines_), ""};
  ASSIGN_OR_RETURN(cut.hash, HashOf(cut.number));
  RETURN_IF_ERROR(
      database_->Write("DELETE FROM audit WHERE number<=?", cut.number));
  RETURN_IF_ERROR(WriteEnd("cut", cut));
  cut_ = std::move(cut);
  return absl::OkStatus();
}

absl::StatusOr<std::string> AuditTable::HashOf(uint64_t number) const {
  if (number == cut_.number) return cut_.hash;
  std::string hash;
  RETURN_IF_ERROR(
      database_->Prepare("SELECT hash FROM audit WHERE number=?", number)
          .Run([&](const Statement& row) {
            hash = row.Text(0);
            return absl::OkStatus();
          }));
  return hash;
}

absl::StatusOr<AuditPage> AuditTable::Read(uint64_t after) const {
  AuditPage page;
  page.newest = newest_.number;
  after = std::max(std::min(after, newest_.number), cut_.number);
  ASSIGN_OR_RETURN(page.before, HashOf(after));
  RETURN_IF_ERROR(
      database_
          ->Prepare(absl::StrCat("SELECT * FROM audit WHERE number>? "
                                 "ORDER BY number LIMIT ",
                                 protocol::kMaxAuditPage),
                    after)
          .Run([&](const Statement& row) {
            page.lines.push_back({row.Integer(0),
                                  {row.Text(2),
                                   {row.Text(3), row.Text(4)},
                                   row.Text(5),
                                   row.Text(6),
                                   row.Text(7),
                                   row.Text(1)},
                                  row.Text(8)});
            return absl::OkStatus();
          }));
  return page;
}

}  // namespace pactrain::coordinator
