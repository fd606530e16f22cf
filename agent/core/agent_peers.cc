// Other agents: connections, and the way from a frame to its group.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/agent_state.h"
#include "base/weakened.h"

namespace pactrain::agent {

GroupState* AgentState::FindGeneration(const protocol::GroupId& group,
                                       const protocol::Digest& generation) {
  auto it = groups_.find(group);
  if (it != groups_.end() && it->second->digest() == generation) {
    return it->second.get();
  }
  for (Ended& ended : ended_) {
    if (ended.group->digest() == generation) return ended.group.get();
  }
  return nullptr;
}

int AgentState::SenderIn(const GroupState& group,
                         const std::string& agent) const {
  const int member = group.MemberOf(agent);
  const auto peer = incarnations_.find(agent);
  if (member < 0 || member == group.me() || peer == incarnations_.end() ||
      (group.generation().members[member].incarnation != peer->second &&
       !PT_WEAKENED(OldIncarnationHeard))) {
    return -1;
  }
  return member;
}

void AgentState::On(const PeerConnected& event, absl::Duration) {
  outbox_.links.Connected(event.agent);
  outbox_.Log(absl::StrCat("connected to agent ", event.agent));
  for (auto& [id, group] : groups_) {
    const int member = SenderIn(*group, event.agent);
    if (member >= 0) group->OnPeerConnected(member);
  }
}

void AgentState::On(const PeerDisconnected& event, absl::Duration now) {
  if (!outbox_.links.Disconnected(event.agent)) return;
  outbox_.Warn(absl::StrCat("lost the connection to agent ", event.agent, ": ",
                            event.reason));
  for (auto& [id, group] : groups_) {
    const int member = group->MemberOf(event.agent);
    if (member >= 0) {
      group->OnPeerDisconnected(member, event.damaged, event.reason, now);
    }
  }
}

void AgentState::On(const PeerControl& event, absl::Duration now) {
  if (!outbox_.links.IsConnected(event.agent)) return;
  const protocol::GroupControl& control = event.control;
  if (const auto* notice =
          std::get_if<protocol::ContextNotice>(&control.body)) {
    outbox_.links.Learn(event.agent, control.group, notice->context);
    return;
  }
  GroupState* group =
      FindGeneration(control.group, protocol::GenerationOf(control));
  if (group == nullptr) return;
  const int member = SenderIn(*group, event.agent);
  if (member >= 0) group->OnControl(member, control, now);
}

void AgentState::On(const PeerData& event, absl::Duration now) {
  if (!outbox_.links.IsConnected(event.agent)) return;
  const PeerLinks::Known* known =
      outbox_.links.Find(event.agent, event.header.context);
  if (known == nullptr) {
    outbox_.BreakPeer(event.agent, absl::StrCat("a data frame names context ",
                                                event.header.context.Short(),
                                                ", which was never told"));
    return;
  }
  GroupState* group = FindGeneration(known->group, known->context.generation);
  if (group == nullptr) return;
  const int member = SenderIn(*group, event.agent);
  if (member < 0 || !group->Hears(member)) return;
  group->OnFrame({member, known->context, event.header, event.payload}, now);
}

// Peers of ended generations are kept as long as those answer. Where two
// generations name different processes of an agent, the one named last is
// right.
void AgentState::UpdatePeers(absl::Duration now) {
  std::map<std::string, SetPeers::Peer> wanted;
  const auto add = [&](const GroupState& group) {
    for (const protocol::Member& m : group.generation().members) {
      if (m.agent == options_.agent) continue;
      SetPeers::Peer& peer = wanted[m.agent];
      if (peer.incarnation != m.incarnation) {
        if (!peer.agent.empty() && incarnations_[m.agent] != m.incarnation) {
          continue;
        }
        peer = {m.agent, m.incarnation, "", "", {}, false};
      }
      peer.site = m.site;
      peer.data_address = m.data_address;
      peer.generations.push_back(group.key());
      // Sites that are roots in turn hang on a core.
      peer.shares_uplink |=
          m.site != options_.site && group.generation().plan.trees.size() > 1;
    }
  };
  for (const Ended& ended : ended_) add(*ended.group);
  for (const auto& [id, group] : groups_) add(*group);
  std::vector<SetPeers::Peer> peers;
  for (const auto& [agent, peer] : wanted) peers.push_back(peer);
  if (peers == peers_) return;
  const std::vector<SetPeers::Peer> before = std::exchange(peers_, peers);
  for (const SetPeers::Peer& old : before) {
    auto it = wanted.find(old.agent);
    if (it != wanted.end() && it->second.incarnation == old.incarnation)
      continue;
    ForgetPeer(old.agent, now);
  }
  std::erase_if(incarnations_, [&](const auto& entry) {
    return wanted.count(entry.first) == 0;
  });
  outbox_.effects.emplace_back(SetPeers{peers_});
}

// The shell closes its connection without a word.
void AgentState::ForgetPeer(const std::string& agent, absl::Duration now) {
  if (!outbox_.links.Disconnected(agent)) return;
  for (auto& [id, group] : groups_) {
    const int member = group->MemberOf(agent);
    if (member < 0) continue;
    group->OnPeerDisconnected(member, false, "the agent was restarted", now);
  }
}

}  // namespace pactrain::agent
