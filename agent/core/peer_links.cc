#include "agent/core/peer_links.h"

namespace pactrain::agent {

bool PeerLinks::MustTell(const std::string& agent,
                         const protocol::Digest& digest) {
  return links_.at(agent).told.Add(digest, {});
}

void PeerLinks::Learn(const std::string& agent, const protocol::GroupId& group,
                      const protocol::BucketContext& context) {
  auto it = links_.find(agent);
  if (it == links_.end()) return;
  it->second.learned.Add(context.ComputeDigest(), {group, context});
}

const PeerLinks::Known* PeerLinks::Find(const std::string& agent,
                                        const protocol::Digest& digest) const {
  auto it = links_.find(agent);
  if (it == links_.end()) return nullptr;
  auto found = it->second.learned.entries.find(digest);
  return found == it->second.learned.entries.end() ? nullptr : &found->second;
}

}  // namespace pactrain::agent
