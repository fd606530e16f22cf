#include "coordinator/store/history_table.h"

#include "base/status_macros.h"
#include "protocol/proto_check.h"

namespace pactrain::coordinator {
namespace {

// Whose writers are remembered; an agent that was away for more openings than
// that is refused, and has to be restarted.
constexpr uint64_t kMaxWriters = 10000;

}  // namespace

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
