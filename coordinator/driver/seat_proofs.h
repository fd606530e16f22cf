// Seats' secrets, and the proofs of those that had them
// (protocol/seat_claim.h).
//
// Pure functions.
#ifndef PACTRAIN_COORDINATOR_DRIVER_SEAT_PROOFS_H_
#define PACTRAIN_COORDINATOR_DRIVER_SEAT_PROOFS_H_

#include <string>

#include "base/secret.h"
#include "protocol/control.h"

namespace pactrain::coordinator {

// Adds the secrets of this agent's seats, and of nobody else's.
void TellSeats(const base::Secret& cluster, const std::string& agent,
               protocol::StartGeneration& start);
// The message with what the proofs in it are worth.
protocol::AgentMessage WithProofs(const base::Secret& cluster,
                                  protocol::AgentMessage message);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_DRIVER_SEAT_PROOFS_H_
