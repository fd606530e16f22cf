// By which the ends of a lane show each other that they are the ends of the
// pair's connection, on which the keys of generations have been shown
// (key_proofs.h). A proof covers both names and what only the lane has, so it
// is good on no other connection and not the other way round.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_LANE_PROOF_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_LANE_PROOF_H_

#include <string>

#include "protocol/frame.h"

namespace pactrain::agent {

// `pair_binding`, `lane_binding`: Connection::Binding() of both.
protocol::LaneProof MakeLaneProof(const std::string& pair_binding,
                                  const std::string& lane_binding,
                                  const std::string& sender,
                                  const std::string& receiver);

// In a time that does not depend on the bytes.
bool IsSame(const protocol::LaneProof& a, const protocol::LaneProof& b);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_LANE_PROOF_H_
