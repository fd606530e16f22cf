// The decisions of one group: which is in force, which is prepared.
//
// Rules: versions only go up, over generations too; at most one decision is
// prepared at a time; what is in force is learnt from the agents, never
// assumed.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_DECISIONS_H_
#define PACTRAIN_COORDINATOR_CORE_DECISIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/journal_record.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

class Decisions {
 public:
  Decisions() = default;
  // After a restart: in force is the generation's own decision until agents say
  // more.
  explicit Decisions(const Recovered::Group& recovered);

  // The first decision of a new generation; nothing is prepared any more.
  const protocol::Decision& Start(protocol::Decision decision);
  // The next decision; replaces one that is prepared.
  const protocol::Decision& Prepare(protocol::Decision decision);
  // Takes the prepared decision back.
  void Revoke() { prepared_.reset(); }
  // Agents report `version` in force. True: that is news.
  bool SetInForce(uint64_t version);
  // Not of a decision that was made after a backup, which was then restored.
  bool Knows(uint64_t version) const;

  const protocol::Decision& in_force() const { return in_force_; }
  const std::optional<protocol::Decision>& prepared() const {
    return prepared_;
  }
  // What the group will have if nothing changes.
  const protocol::Decision& aim() const {
    return prepared_ ? *prepared_ : in_force_;
  }
  const std::vector<protocol::Decision>& history() const { return history_; }

 private:
  const protocol::Decision& Number(protocol::Decision decision);

  uint64_t last_version_ = 0;
  protocol::Decision in_force_;
  std::optional<protocol::Decision> prepared_;
  std::vector<protocol::Decision> history_;  // Newest first.
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_DECISIONS_H_
