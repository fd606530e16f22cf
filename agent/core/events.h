// What can happen to an agent, as plain values: the input of AgentState.
#ifndef PACTRAIN_AGENT_CORE_EVENTS_H_
#define PACTRAIN_AGENT_CORE_EVENTS_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/types/span.h"
#include "agent/exchange/payload.h"
#include "protocol/control.h"
#include "protocol/frame.h"
#include "trainer/wire.h"

namespace pactrain::agent {

// One connection of a trainer; given by the shell, never used twice.
using TrainerId = uint64_t;

// Memory that the shell made for a trainer before it passes its Hello on. Both
// start at a multiple of wire::kSlotAlign and stay valid until CloseTrainer or
// TrainerGone of the last trainer that has them.
struct TrainerMemory {
  absl::Span<const uint8_t> slot;  // Written by the trainer at any time.
  absl::Span<uint8_t> result;      // One per HelloGrant::region.
};

// `memory` is what CheckHello() granted; empty if it refused: the Hello is to
// be passed on all the same, the answer is a Failed and CloseTrainer.
struct TrainerHello {
  TrainerId trainer = 0;
  wire::Hello hello;
  TrainerMemory memory;
  base::Secret proof = {};  // protocol::Trainer::proof
};

// Of a node reduce; the BucketWord is a Reduced.
using CollectiveMessage =
    std::variant<wire::CollectiveId, wire::Opened, wire::Staged,
                 wire::BucketWord, wire::CollectiveFailed>;

// Any later message. The shell has checked kind and size, nothing else.
struct TrainerMessage {
  TrainerId trainer = 0;
  std::variant<wire::Submit, wire::Vote, protocol::KeepByParameter,
               wire::DevicePath, wire::Detach, CollectiveMessage>
      message;
};

// The process is dead or closed its socket. Not to be told after CloseTrainer.
struct TrainerGone {
  TrainerId trainer = 0;
  std::string reason;  // "was killed by signal 9": follows "rank 3".
};

// A trainer of a former process of this agent, which ended before it could say
// so or while nobody heard it: `reason` as in TrainerGone, or "detached". A
// fact, told once.
struct FormerTrainerLeft {
  protocol::GroupId group;
  uint32_t rank = 0;
  protocol::Digest attach_id;
  std::string reason;
};

// The shell has sent AgentHello; what the answer to this event sends follows
// it.
struct CoordinatorConnected {};
struct CoordinatorDisconnected {
  std::string reason;
};

// A connection to a peer of the last SetPeers, after both hellos.
struct PeerConnected {
  std::string agent;
};
// Always between two PeerConnected of one agent. Not told for a connection that
// a SetPeers ended.
struct PeerDisconnected {
  std::string agent;
  bool damaged = false;  // A checksum was wrong.
  std::string reason;
};
// Control frames of a connection come in the order in which they were sent, and
// so do data frames; control may overtake data.
struct PeerControl {
  std::string agent;
  protocol::GroupControl control;
};
// Header and checksums have been checked as in protocol/frame.h.
struct PeerData {
  std::string agent;
  protocol::FrameHeader header;
  Payload payload;  // header.bytes long, aligned to 4 bytes.
};

// About every 100 ms, or Options::resolution_timeout() / 10 where that is
// shorter.
struct Tick {
  // Bytes per second to the other site that takes the fewest; 0: not measured.
  double slowest_link = 0;
};

using Event =
    std::variant<TrainerHello, TrainerMessage, TrainerGone, FormerTrainerLeft,
                 CoordinatorConnected, CoordinatorDisconnected,
                 protocol::CoordinatorMessage, PeerConnected, PeerDisconnected,
                 PeerControl, PeerData, Tick>;

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_EVENTS_H_
