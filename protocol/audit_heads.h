// What an agent keeps of the coordinator's audit log: where it ended, as it was
// told. A log that ends sooner, or has another line there, was changed.
//
// Plain values and pure functions.
#ifndef PACTRAIN_PROTOCOL_AUDIT_HEADS_H_
#define PACTRAIN_PROTOCOL_AUDIT_HEADS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/secret.h"

namespace pactrain::protocol {

inline constexpr size_t kAuditHashBytes = 32;
// That one agent keeps: of so many terms of the coordinator.
inline constexpr size_t kMaxAuditHeads = 32;

// The newest line at some moment.
struct AuditHead {
  uint64_t term = 0;    // Of the coordinator that told it.
  uint64_t number = 0;  // Of the line; 0: none was told.
  std::string hash;     // As AuditLine::hash.
  // Made of the journal's secret by the coordinator's shell, so that nobody
  // else can make up a log.
  base::Secret proof = {};

  bool empty() const { return number == 0; }
  bool operator==(const AuditHead&) const = default;
};

// Takes the head in, in the place of an older one of its term. Of too many the
// oldest goes that a later one goes beyond: what shows a cut stays longest. An
// empty one is ignored.
void KeepHead(const AuditHead& head, std::vector<AuditHead>& heads);

// The text of a file, and back.
struct KeptHeads {
  std::string agent;    // Who keeps them.
  std::string cluster;  // Whose coordinator told them.
  std::vector<AuditHead> heads;
};
std::string WriteHeads(const KeptHeads& kept);
// InvalidArgument: it is no such text.
absl::StatusOr<KeptHeads> ReadHeads(absl::string_view text);

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_AUDIT_HEADS_H_
