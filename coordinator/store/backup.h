// Backups of a journal, and a state directory made of one.
//
// A backup is one file with all that the journal holds, the cluster's secret
// too. It is written below the state directory, so that the secret leaves the
// machine by its owner's hand only.
//
// What agents were told after a backup is lost with the newest state directory.
// So a restored journal goes on far beyond its backup: with terms, generations
// and versions of decisions that nobody can have been told, and as another
// writer of the history, which forgives what agents know that it does not
// (History).
#ifndef PACTRAIN_COORDINATOR_STORE_BACKUP_H_
#define PACTRAIN_COORDINATOR_STORE_BACKUP_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pactrain::coordinator {

inline constexpr size_t kMaxBackups = 32;

// One generation a second, for 30 years: what no coordinator has come to
// between a backup and its end.
inline constexpr uint64_t kBeyond = 1'000'000'000;

// Copies the journal of a directory that is open into DIR/backups/NAME, a new
// file for its owner alone, while others write the journal. Returns its path.
//   InvalidArgument:    NAME is no file's name as CheckName() has it.
//   AlreadyExists:      there is one of that name.
//   ResourceExhausted:  there are kMaxBackups, or the disk is full.
//   FailedPrecondition: as OwnFolder::Open().
//   DataLoss, Unavailable: it cannot be read or written.
// Not to be called by two threads at once.
absl::StatusOr<std::string> WriteBackup(const std::string& dir,
                                        const std::string& name);

// Makes `dir` the state directory of cluster `cluster` from a backup.
//   FailedPrecondition: it holds a journal, or a coordinator uses it, the
//                       backup is another cluster's or a newer version's.
//   DataLoss:           the file is no backup, or damaged.
//   Others: as above.
absl::Status RestoreBackup(const std::string& file, const std::string& dir,
                           const std::string& cluster);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_STORE_BACKUP_H_
