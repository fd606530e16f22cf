// The secret of a seat, and what a trainer that had it claims later: the fields
// of base::ComputeMac(), which coordinator and agents call in their shells.
//
// The secret is made of the journal's, so no coordinator has to keep it: the
// same after a restart, and of a restored copy of the journal. It is told to
// the agent of that seat with StartGeneration, and by it to the trainer, who
// shows it to its own agent when it attaches again. That one proves the claim
// by it.
//
// The claim names its attach, which is new each time: a proof that is said
// again says nothing new.
//
// Pure functions.
#ifndef PACTRAIN_PROTOCOL_SEAT_CLAIM_H_
#define PACTRAIN_PROTOCOL_SEAT_CLAIM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/types.h"

namespace pactrain::protocol {

// With the journal's secret: the secret of the seat that the trainer of this
// attach had in that generation.
std::vector<std::string> FieldsOfSeat(const GroupId& group, uint64_t generation,
                                      const Digest& attach_id);
// With the secret of the seat of `trainer.last_attach_id`: the proof of all
// that it claims.
std::vector<std::string> FieldsOfClaim(const GroupId& group,
                                       const Trainer& trainer);

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_SEAT_CLAIM_H_
