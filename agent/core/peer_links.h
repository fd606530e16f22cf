// The connections to other agents, and what the digests in their data frames
// stand for.
//
// Rule: a context is told on a connection before the first data frame that
// carries its digest. Both ends forget the oldest contexts alike, far beyond
// what one step uses, so a digest in use is known.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_PEER_LINKS_H_
#define PACTRAIN_AGENT_CORE_PEER_LINKS_H_

#include <cstddef>
#include <deque>
#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "protocol/frame.h"

namespace pactrain::agent {

class PeerLinks {
 public:
  static constexpr size_t kMaxContexts = 1 << 16;  // Per connection and way.

  struct Known {
    protocol::GroupId group;
    protocol::BucketContext context;
  };

  void Connected(const std::string& agent) { links_[agent] = {}; }
  // False: it was not connected.
  bool Disconnected(const std::string& agent) {
    return links_.erase(agent) > 0;
  }
  bool IsConnected(const std::string& agent) const {
    return links_.count(agent) > 0;
  }

  // True: the context has to be told first. REQUIRES: connected.
  bool MustTell(const std::string& agent, const protocol::Digest& digest);
  // The peer told what a digest stands for.
  void Learn(const std::string& agent, const protocol::GroupId& group,
             const protocol::BucketContext& context);
  // Null: the peer never told.
  const Known* Find(const std::string& agent,
                    const protocol::Digest& digest) const;

 private:
  // The newest entries by digest.
  template <typename Value>
  struct Table {
    // False: there already.
    bool Add(const protocol::Digest& digest, Value value) {
      if (!entries.emplace(digest, std::move(value)).second) return false;
      order.push_back(digest);
      if (order.size() > kMaxContexts) {
        entries.erase(order.front());
        order.pop_front();
      }
      return true;
    }
    absl::flat_hash_map<protocol::Digest, Value> entries;
    std::deque<protocol::Digest> order;
  };
  struct Nothing {};
  struct Link {
    Table<Nothing> told;
    Table<Known> learned;
  };

  std::map<std::string, Link> links_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_PEER_LINKS_H_
