// Connections between agents: one per pair while both want it. Control
// overtakes data, as on the real one; a break loses what is under way and is
// noticed late.
#ifndef PACTRAIN_TESTS_SIM_NETWORK_H_
#define PACTRAIN_TESTS_SIM_NETWORK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/events.h"
#include "base/digest.h"
#include "tests/sim/world.h"

namespace pactrain::sim {

// One agent's end of all its connections.
class PeerEnd {
 public:
  virtual ~PeerEnd() = default;
  virtual bool alive() const = 0;
  // Until when it is stopped: till then it sees and does nothing.
  virtual absl::Duration stopped_until() const = 0;
  virtual const std::string& name() const = 0;
  virtual base::Digest incarnation() const = 0;
  virtual bool Wants(const PeerEnd& peer) const = 0;
  virtual void OnPeerEvent(const agent::Event& event) = 0;
};

class Network {
 public:
  struct Options {
    int duplicate_permille = 0;  // Of messages.
    int slow_permille = 0;       // Of messages: late by up to 300 ms.
  };
  using Message = std::variant<agent::PeerControl, agent::PeerData>;

  Network(World* world, const Options& options)
      : world_(world), options_(options) {}
  void Add(PeerEnd* end) { ends_.push_back(end); }
  // As behind a firewall: no other end ever reaches it, nor it them.
  void Strand(const std::string& name) { stranded_.insert(name); }

  // An end lives, died or wants other peers than before.
  void Update(const PeerEnd& end);
  // `message.agent` is the sender.
  void Send(const PeerEnd& from, const std::string& to, Message message);
  // Both ends lose the connection; no new one for `outage`.
  void Break(size_t a, size_t b, absl::Duration outage, bool damaged);

 private:
  struct Pair {
    PeerEnd* end[2] = {};
    uint64_t connection = 0;  // 0: none.
    uint64_t view[2] = {};    // What each end believes.
    Lane lane[2];             // Of control, towards end[i].
    absl::Duration blocked_until;
    bool dialling = false;
  };
  using Key = std::pair<std::string, std::string>;

  Pair& Get(PeerEnd* a, PeerEnd* b);
  void TryConnect(const Key& key);
  void Connected(const Key& key, int side, uint64_t connection);
  void HearLost(const Key& key, int side, uint64_t lost, bool damaged);
  void Deliver(const Key& key, int side, uint64_t connection,
               const Message& message, bool waited);
  // True: that end is stopped, and `what` is done when it goes on.
  bool Waits(const PeerEnd& end, std::function<void()> what);
  void Lose(const Key& key, bool damaged);
  absl::Duration Delay();

  World* const world_;
  const Options options_;
  std::vector<PeerEnd*> ends_;
  std::set<std::string> stranded_;
  std::map<Key, Pair> pairs_;
  uint64_t next_connection_ = 1;
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_NETWORK_H_
