// Reads what a trainer sent: one packet, checked before anything uses it.
//
// Pure. Thread-safe.
#ifndef PACTRAIN_AGENT_LOCAL_PACKET_H_
#define PACTRAIN_AGENT_LOCAL_PACKET_H_

#include <cstring>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "protocol/keep_by_parameter.h"
#include "trainer/wire.h"

namespace pactrain::agent {

// A wire::Keep comes as what it says, since it is large.
using TrainerPacket =
    std::variant<wire::Hello, wire::Submit, wire::Vote,
                 protocol::KeepByParameter, wire::DevicePath, wire::Detach,
                 wire::Ask, wire::CollectiveId, wire::Opened, wire::Staged,
                 wire::BucketWord, wire::CollectiveFailed>;

// Checks what can be checked without knowing the trainer: kind, size, that
// every text ends in its array, flags and enums. The core checks the rest.
//   InvalidArgument: names the field, what came and what is allowed.
absl::StatusOr<TrainerPacket> ParseTrainerPacket(
    absl::Span<const uint8_t> packet);

// A struct as the bytes of one packet.
template <typename Message>
std::string PacketOf(const Message& message) {
  return std::string(reinterpret_cast<const char*>(&message), sizeof(message));
}

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_PACKET_H_
