// Which decision holds, and which one may hold next, at one agent.
//
// Rules:
//   - A candidate that a vote has named is kept until that attempt is resolved,
//     whatever is prepared or revoked meanwhile.
//   - The candidate holds from the next step on if and only if all votes of a
//     commit named it.
//   - A candidate is accepted, and kept, only while the newest mask votes of
//     the local trainers match it.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_DECISION_SWITCH_H_
#define PACTRAIN_AGENT_CORE_DECISION_SWITCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/types.h"

namespace pactrain::agent {

// The newest mask vote of one local trainer; empty digests: it never voted.
struct MaskState {
  uint32_t rank = 0;
  protocol::Digest layout_digest;
  protocol::Digest mask_digest;
  bool counts = false;        // It is settled, and leaves elements out.
  double dense_per_kept = 1;  // All of its elements over those that it keeps.
};

class DecisionSwitch {
 public:
  explicit DecisionSwitch(protocol::Decision in_force)
      : in_force_(std::move(in_force)) {}

  // Empty: accepted, and the candidate of the next votes. Else why not.
  std::string Prepare(const protocol::Decision& decision,
                      const std::vector<MaskState>& masks);
  void Revoke(uint64_t version);
  // Withdraws a candidate that the masks no longer match: returns the reason,
  // to be told to the coordinator. Empty: nothing was withdrawn.
  std::string OnMasks(const std::vector<MaskState>& masks);

  // The version to name in a vote that is now cast; 0: none, or not `due`.
  uint64_t NameCandidate(bool due = true);
  // The attempt whose vote named a candidate is over; `agreed` is the candidate
  // of all votes if it was committed, else 0. REQUIRES: `agreed` is 0 or the
  // version named last.
  void OnResolved(uint64_t agreed);

  const protocol::Decision& in_force() const { return in_force_; }
  uint64_t candidate() const { return candidate_ ? candidate_->version : 0; }
  const std::optional<protocol::Decision>& candidate_decision() const {
    return candidate_;
  }

 private:
  protocol::Decision in_force_;
  std::optional<protocol::Decision> candidate_;
  bool named_ = false;  // `candidate_` is fixed by a vote.
  // While it is fixed: what replaces it afterwards, if anything does.
  bool replaced_ = false;
  std::optional<protocol::Decision> replacement_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_DECISION_SWITCH_H_
