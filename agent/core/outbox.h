// Where the parts of the core put what they want done; keeps the promises of
// effects.h that need to know who is connected.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_OUTBOX_H_
#define PACTRAIN_AGENT_CORE_OUTBOX_H_

#include <string>
#include <utility>

#include "agent/core/effects.h"
#include "agent/core/peer_links.h"

namespace pactrain::agent {

class Outbox {
 public:
  // Dropped unless connected.
  void ToPeer(const std::string& agent, protocol::GroupControl control) {
    if (!links.IsConnected(agent)) return;
    effects.emplace_back(SendPeerControl{agent, std::move(control)});
  }
  // Tells the context first where the peer does not know it.
  void ToPeer(const std::string& agent, const protocol::GroupId& group,
              const protocol::BucketContext& context,
              const protocol::FrameHeader& header, Payload payload) {
    if (!links.IsConnected(agent)) return;
    if (links.MustTell(agent, header.context)) {
      effects.emplace_back(SendPeerControl{
          agent, {group, protocol::ContextNotice{group.model, context}}});
    }
    effects.emplace_back(SendPeerData{agent, header, std::move(payload)});
  }
  void ToTrainer(TrainerId trainer, decltype(SendTrainer::message) message) {
    effects.emplace_back(SendTrainer{trainer, std::move(message)});
  }
  void ToCoordinator(protocol::AgentMessage message) {
    if (!coordinator_connected) return;
    effects.emplace_back(SendCoordinator{std::move(message)});
  }
  void Log(std::string text) {
    effects.emplace_back(LogLine{false, std::move(text)});
  }
  void Warn(std::string text) {
    effects.emplace_back(LogLine{true, std::move(text)});
  }
  // The connection counts as open until the shell reports it as disconnected.
  void BreakPeer(const std::string& agent, std::string reason) {
    Warn("closing the connection to agent " + agent + ": " + reason);
    effects.emplace_back(ClosePeer{agent, std::move(reason)});
  }

  Effects effects;
  PeerLinks links;
  bool coordinator_connected = false;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_OUTBOX_H_
