// Which generations' keys both ends of one connection have shown that they
// hold.
//
// A proof covers the generation, both names and what only this connection has
// (its binding), so it is good for nothing else: not in another generation, not
// on another connection, not the other way round.
//
// Rule: of a generation that this end knows, nothing is heard before its proof.
// What a peer proves of one that this end does not know yet is kept until it
// does.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_KEY_PROOFS_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_KEY_PROOFS_H_

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "protocol/frame.h"
#include "protocol/types.h"

namespace pactrain::agent {

class KeyProofs {
 public:
  // More than two agents share; of more the oldest are forgotten.
  static constexpr size_t kMaxWaiting = 2048;

  struct Ends {
    std::string own;
    std::string peer;
    std::string binding;
  };

  explicit KeyProofs(Ends ends) : ends_(std::move(ends)) {}

  // From now on exactly these generations are shared with the peer. Returns
  // what has to be sent before anything else is said of them.
  //   Unauthenticated: as OnProof(), of one that was kept.
  absl::StatusOr<std::vector<protocol::KeyProof>> SetGenerations(
      const std::vector<protocol::GenerationKey>& shared);
  // Unauthenticated: the peer does not hold the key, or not on this connection.
  absl::Status OnProof(const protocol::KeyProof& proof);
  // The peer says something of a generation.
  //   Unauthenticated: it is shared, and the peer has not shown its key.
  absl::Status CheckHeard(const protocol::Digest& generation) const;

 private:
  struct Shared {
    base::Secret key;
    bool proven = false;  // By the peer.
  };

  base::Secret MacOf(const protocol::Digest& generation,
                     const base::Secret& key, bool own) const;
  absl::Status Check(const protocol::KeyProof& proof, Shared& shared) const;

  const Ends ends_;
  std::map<protocol::Digest, Shared> shared_;
  std::deque<protocol::KeyProof> waiting_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_KEY_PROOFS_H_
