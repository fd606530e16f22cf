// What should travel, given what the mask votes say: stable means COMPACTED,
// anything that could lose a gradient or lasts too long means FULL.
//
// Pure functions.
#ifndef PACTRAIN_COORDINATOR_CORE_POLICY_H_
#define PACTRAIN_COORDINATOR_CORE_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/core/mask_votes.h"
#include "coordinator/core/options.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

// Two decisions ask for the same, whatever their versions and reasons.
bool SameContent(const protocol::Decision& a, const protocol::Decision& b);

// FULL with the options' codec.
protocol::Decision FullDecision(const Options& options, std::string reason);

// The decision to aim at after `step` committed steps when `current` is aimed
// at now (version 0; the caller numbers it). Nothing: stay with `current`.
std::optional<protocol::Decision> Choose(const Options& options,
                                         const protocol::Decision& current,
                                         const MaskVotes& votes, uint64_t step);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_POLICY_H_
