// What the members of a generation said about one attempt of a step, and what
// follows from it.
//
// Rules, each the same at all members once they hold the same messages:
//   - Committed: all members voted for equal results (and equal parameters). A
//     vote counts whether it came alone or within an abort.
//   - Failed: all members aborted and not all of them voted equally. The worst
//     cause of all decides what is done next.
//   - Both cannot be: a member never votes after its own abort, and its vote
//     and abort of an attempt never change.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_BALLOT_H_
#define PACTRAIN_AGENT_CORE_BALLOT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "protocol/frame.h"
#include "protocol/types.h"

namespace pactrain::agent {

struct Resolution {
  enum class Kind {
    kOpen,
    kCommitted,
    kFailed,
    // All voted, not equally: nobody can commit; the aborts are still awaited.
    kDisagreed,
  };
  Kind kind = Kind::kOpen;
  // kCommitted: the candidate that all votes name; 0: none, or they differ.
  uint64_t candidate = 0;
  // kFailed, kDisagreed: the worst cause and who said what.
  protocol::Cause cause = protocol::Cause::kNone;
  std::string detail;
};

// Of a digest of parameters, for messages: a rank that was not asked to compare
// them in this step, as others were, has sent none.
std::string ParametersText(const protocol::Digest& parameters);

class Ballot {
 public:
  // `names`: of each member, for texts: "agent x (site a)".
  explicit Ballot(std::vector<std::string> names);

  // False: it contradicts what the member said before, and changed nothing.
  bool AddVote(int member, const protocol::CommitVote& vote);
  bool AddAbort(int member, const protocol::Abort& abort);
  bool HasVoted(int member) const { return votes_[member].has_value(); }

  Resolution Resolve() const;
  // Some member aborted without a vote: this attempt is never committed.
  bool HasRefusal() const;
  // Who has not voted, or not aborted, yet.
  std::string MissingVotes() const { return MissingNames(false); }
  std::string MissingAborts() const { return MissingNames(true); }

 private:
  bool AllVoted() const;
  std::string MissingNames(bool aborted) const;
  // kNone: the votes are equal. REQUIRES: AllVoted().
  protocol::Cause Difference() const;
  std::string DifferenceText(protocol::Cause cause) const;
  std::string CauseText(protocol::Cause cause) const;

  std::vector<std::string> names_;
  std::vector<std::optional<protocol::CommitVote>> votes_;
  std::vector<std::optional<protocol::Abort>> aborts_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_BALLOT_H_
