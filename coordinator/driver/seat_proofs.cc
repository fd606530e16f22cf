#include "coordinator/driver/seat_proofs.h"

#include <variant>

#include "base/tls/mac.h"
#include "protocol/seat_claim.h"

namespace pactrain::coordinator {
namespace {

base::Secret SecretOf(const base::Secret& cluster,
                      const protocol::GroupId& group, uint64_t generation,
                      const protocol::Digest& attach_id) {
  return base::ComputeMac(cluster,
                          protocol::FieldsOfSeat(group, generation, attach_id));
}

bool IsProven(const base::Secret& cluster,
              const protocol::TrainerJoined& joined) {
  const protocol::Trainer& trainer = joined.trainer;
  // All attaches of one trainer have the upper half in common.
  if (trainer.proof.empty() ||
      trainer.last_attach_id.hi != trainer.attach_id.hi) {
    return false;
  }
  const base::Secret secret = SecretOf(
      cluster, joined.group, trainer.last_generation, trainer.last_attach_id);
  return base::IsSameMac(
      trainer.proof,
      base::ComputeMac(secret, protocol::FieldsOfClaim(joined.group, trainer)));
}

}  // namespace

void TellSeats(const base::Secret& cluster, const std::string& agent,
               protocol::StartGeneration& start) {
  const protocol::Generation& generation = start.generation;
  start.seats.clear();
  for (const protocol::Member& member : generation.members) {
    if (member.agent != agent) continue;
    for (const protocol::Digest& attach_id : member.attach_ids) {
      start.seats.push_back(
          SecretOf(cluster, generation.group, generation.number, attach_id));
    }
  }
}

protocol::AgentMessage WithProofs(const base::Secret& cluster,
                                  protocol::AgentMessage message) {
  if (auto* local = std::get_if<protocol::LocalTrainers>(&message)) {
    for (protocol::TrainerJoined& joined : local->here) {
      joined.proven = IsProven(cluster, joined);
    }
  }
  return message;
}

}  // namespace pactrain::coordinator
