// With which step of gradients a decision may come in force, and for which one
// a step waits before it commits: so equal runs switch at equal steps, however
// long the coordinator takes.
//
// Steps of gradients are counted from 1 in each generation; `next` is the first
// one that the decision would hold for.
//
// Pure functions.
#ifndef PACTRAIN_AGENT_CORE_ONSET_H_
#define PACTRAIN_AGENT_CORE_ONSET_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "agent/core/decision_switch.h"
#include "protocol/types.h"

namespace pactrain::agent {

// Other masks are due with the multiples of activate_every; what is pinned with
// pin_from, or, having missed that, with such a multiple after it; all else
// with any step: it changes no mask, and a mask set that lost its votes ends at
// once.
bool IsDue(const protocol::Onset& onset, const protocol::Decision& in_force,
           const protocol::Decision& candidate, uint64_t next);

// The local trainers' votes, or the pin, ask for a decision that would be due
// now, and `candidate`, if it is, is not that. Where masks may come in force
// with any step nothing but a pin is waited for; and nothing before votes have
// settled, when no decision is made.
bool IsAwaited(const protocol::Onset& onset, const protocol::Decision& in_force,
               const std::optional<protocol::Decision>& candidate,
               const std::vector<MaskState>& masks, uint64_t next);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_ONSET_H_
