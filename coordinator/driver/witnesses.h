// What agents keep of the audit log (protocol/audit_heads.h), held against it.
//
// Whoever writes to the state directory can cut the log at its end, or make all
// of it anew; what agents were told by then he cannot change.
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_DRIVER_WITNESSES_H_
#define PACTRAIN_COORDINATOR_DRIVER_WITNESSES_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/store/journal.h"
#include "protocol/audit_heads.h"

namespace pactrain::coordinator {

// One agent.
struct Witness {
  std::string agent;
  std::vector<protocol::AuditHead> heads;  // As of KeepHead().
  bool connected = false;                  // Set by the driver.
};

class Witnesses {
 public:
  // Of more agents that one goes that was heard longest ago. `journal` must
  // outlive this.
  Witnesses(Journal* journal, size_t max_agents)
      : journal_(journal), max_agents_(max_agents) {}

  // Where the log ends now, with its proof; empty: it has no line.
  protocol::AuditHead Head() const;

  struct Trouble {
    std::string what;  // "lines 41 to 57 are missing"
    std::string why;
  };
  // What this agent keeps by now. Heads that this journal's secret has not
  // proven are ignored. Returns what they show of the log, each time; nothing:
  // it has them all.
  std::optional<Trouble> Hear(const std::string& agent,
                              const std::vector<protocol::AuditHead>& heads,
                              absl::Duration now);

  // Agents that keep what the log does not have.
  size_t contradicting() const;
  std::vector<Witness> all() const;

 private:
  struct Kept {
    std::vector<protocol::AuditHead> heads;
    bool contradicts = false;
    absl::Duration heard;
  };
  base::Secret ProofOf(const protocol::AuditHead& head) const;
  std::optional<Trouble> Compare(const std::string& agent,
                                 const protocol::AuditHead& head) const;

  Journal* const journal_;
  const size_t max_agents_;
  std::map<std::string, Kept> agents_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_DRIVER_WITNESSES_H_
