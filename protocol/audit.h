// A line of the coordinator's audit log: who did what to which job, and why.
//
// Plain values.
#ifndef PACTRAIN_PROTOCOL_AUDIT_H_
#define PACTRAIN_PROTOCOL_AUDIT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pactrain::protocol {

inline constexpr size_t kMaxAuditText = 512;   // Bytes of one field.
inline constexpr size_t kMaxAuditPage = 1000;  // Lines of one answer.
// About 30 MB.
inline constexpr uint64_t kMaxAuditLines = 100'000;
// Cut at once, so that it is not done for every line.
inline constexpr uint64_t kAuditCut = 1000;

// Who calls, as the connection says.
struct Caller {
  std::string who = "local";  // Its identity's URI; "local": there is no TLS.
  // Of its certificate, in hex; of one that is made of a job key "key/" and the
  // key's id; empty: it has none.
  std::string serial;
};

struct AuditEvent {
  std::string kind;  // "generation formed"
  Caller caller;
  std::string job;  // "myjob/1"; empty: of no job.
  std::string what;
  std::string why;
  std::string at;  // Wall clock, for people: "2026-01-31T12:00:00.000Z".
};

struct AuditLine {
  uint64_t number = 0;  // From 1, without a gap.
  AuditEvent event;
  std::string hash;  // base::ChainHash() of the line before and Fields().

  // What the hash covers, in this order.
  std::vector<std::string> Fields() const {
    return {std::to_string(number), event.at,  event.kind, event.caller.who,
            event.caller.serial,    event.job, event.what, event.why};
  }
};

// Successive lines, oldest first.
struct AuditPage {
  uint64_t newest = 0;  // The number of the last line there is; 0: none.
  std::string before;   // The hash of the line before the first of these.
  std::vector<AuditLine> lines;
};

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_AUDIT_H_
