// What an agent's core wants done, as plain values, to be carried out in order.
#ifndef PACTRAIN_AGENT_CORE_EFFECTS_H_
#define PACTRAIN_AGENT_CORE_EFFECTS_H_

#include <string>
#include <variant>
#include <vector>

#include "agent/core/events.h"
#include "protocol/control.h"
#include "protocol/frame.h"
#include "protocol/types.h"
#include "trainer/wire.h"

namespace pactrain::agent {

// Connections to exactly these agents are wanted from now on. One to another
// agent, or to another incarnation, is closed and not reported as disconnected.
// Before anything is said of a generation the shell shows that it has the key,
// and a peer that has not is not heard in it.
struct SetPeers {
  struct Peer {
    std::string agent;
    base::Digest incarnation;
    std::string site;
    std::string data_address;
    std::vector<protocol::GenerationKey> generations;  // Shared with it.
    // It is of another site that is a root in turn with this one, so both hang
    // on a core: data for all such peers leaves by one link.
    bool shares_uplink = false;
    bool operator==(const Peer&) const = default;
  };
  std::vector<Peer> peers;  // By agent.
};

// Only told for connected peers. What is lost with a connection is not said
// again by the shell.
struct SendPeerControl {
  std::string agent;
  protocol::GroupControl control;
};
// `header.payload_crc` is left to the shell.
struct SendPeerData {
  std::string agent;
  protocol::FrameHeader header;
  Payload payload;
};
// The peer broke the protocol: close its connection and report it as
// PeerDisconnected, then connect anew.
struct ClosePeer {
  std::string agent;
  std::string reason;
};

// With Attached go the file descriptors of the trainer's slot and result
// region. Of a Committed the shell fills in `link_rate`. A Written may be left
// out while the trainer does not read.
struct SendTrainer {
  TrainerId trainer = 0;
  std::variant<wire::Waiting, wire::Attached, wire::Resubmit, wire::Written,
               wire::Committed, wire::Failed, wire::MakeId, wire::Open,
               wire::BucketWord, wire::Close>
      message;
};
// After what was sent has been read (bounded by the shell); the core has
// forgotten the trainer and its memory.
struct CloseTrainer {
  TrainerId trainer = 0;
};

// Only told while the coordinator is connected. Of a StepReport the shell fills
// in `links`.
struct SendCoordinator {
  protocol::AgentMessage message;
};

// One sentence for the log.
struct LogLine {
  bool warning = false;
  std::string text;
};

using Effect =
    std::variant<SetPeers, SendPeerControl, SendPeerData, ClosePeer,
                 SendTrainer, CloseTrainer, SendCoordinator, LogLine>;
using Effects = std::vector<Effect>;

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_EFFECTS_H_
