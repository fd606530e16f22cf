// Reads what the agent sent: one packet, checked before anything uses it.
//
// Pure. Thread-safe.
#ifndef PACTRAIN_TRAINER_CORE_PACKET_H_
#define PACTRAIN_TRAINER_CORE_PACKET_H_

#include <cstddef>
#include <string>
#include <variant>

#include "trainer/wire.h"

namespace pactrain::trainer {

using AgentPacket =
    std::variant<std::monostate, wire::Waiting, wire::Attached, wire::Resubmit,
                 wire::Written, wire::Committed, wire::Failed, wire::MakeId,
                 wire::Open, wire::BucketWord, wire::Close>;

// Returns what is wrong with the packet, empty if nothing: size not that of its
// kind, unknown kind, text without NUL, enum or number out of range.
std::string ParsePacket(const void* data, size_t bytes, AgentPacket* packet);

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_PACKET_H_
