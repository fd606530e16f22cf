#include "tests/sim/network.h"

#include <algorithm>

namespace pactrain::sim {
namespace {

bool Alike(const PeerEnd& a, const PeerEnd& b) {
  return a.alive() && b.alive() && a.Wants(b) && b.Wants(a);
}

// What may not be overtaken: later messages rely on it.
bool IsOrdered(const protocol::GroupControl& control) {
  return std::holds_alternative<protocol::Ready>(control.body) ||
         std::holds_alternative<protocol::ContextNotice>(control.body);
}

}  // namespace

absl::Duration Network::Delay() {
  const absl::Duration extra =
      world_->random.Chance(options_.slow_permille)
          ? world_->random.Between(absl::ZeroDuration(),
                                   absl::Milliseconds(300))
          : absl::ZeroDuration();
  return extra + world_->random.Between(absl::Microseconds(100),
                                        absl::Milliseconds(10));
}

Network::Pair& Network::Get(PeerEnd* a, PeerEnd* b) {
  if (b->name() < a->name()) std::swap(a, b);
  Pair& pair = pairs_[{a->name(), b->name()}];
  pair.end[0] = a;
  pair.end[1] = b;
  return pair;
}

void Network::Update(const PeerEnd& end) {
  for (PeerEnd* other : ends_) {
    if (other == &end) continue;
    const Pair& pair = Get(other, const_cast<PeerEnd*>(&end));
    const Key key = {pair.end[0]->name(), pair.end[1]->name()};
    if (pair.connection != 0 && !Alike(*pair.end[0], *pair.end[1])) {
      // The end that closed it is not told.
      pairs_[key].view[pair.end[0] == &end ? 0 : 1] = 0;
      Lose(key, false);
    }
    TryConnect(key);
  }
}

void Network::TryConnect(const Key& key) {
  if (stranded_.contains(key.first) || stranded_.contains(key.second)) return;
  Pair& pair = pairs_[key];
  if (pair.dialling || pair.view[0] != 0 || pair.view[1] != 0 ||
      !Alike(*pair.end[0], *pair.end[1])) {
    return;
  }
  pair.dialling = true;
  // Both shake hands, so both are awake.
  const absl::Duration at =
      std::max({world_->now(), pair.blocked_until, pair.end[0]->stopped_until(),
                pair.end[1]->stopped_until()}) +
      3 * Delay();
  world_->At(at, [this, key] {
    Pair& p = pairs_[key];
    p.dialling = false;
    if (p.view[0] != 0 || p.view[1] != 0 || !Alike(*p.end[0], *p.end[1])) {
      return;
    }
    if (world_->now() < std::max({p.blocked_until, p.end[0]->stopped_until(),
                                  p.end[1]->stopped_until()})) {
      return TryConnect(key);
    }
    p.connection = next_connection_++;
    const absl::Duration later = world_->now() + Delay();
    p.lane[0] = p.lane[1] = Lane();
    p.lane[1].Arrival(later, absl::ZeroDuration());
    p.view[1] = p.connection;  // As good as there: it can be lost.
    Connected(key, 0, p.connection);
    world_->At(later, [this, key, c = p.connection] { Connected(key, 1, c); });
  });
}

void Network::Connected(const Key& key, int side, uint64_t connection) {
  Pair& pair = pairs_[key];
  if (Waits(*pair.end[side], [=, this] { Connected(key, side, connection); })) {
    return;
  }
  if (pair.connection != connection) {
    // Lost before this end heard of it.
    if (pair.view[side] == connection) pair.view[side] = 0;
    return;
  }
  pair.view[side] = connection;
  pair.end[side]->OnPeerEvent(agent::PeerConnected{pair.end[1 - side]->name()});
}

void Network::Break(size_t a, size_t b, absl::Duration outage, bool damaged) {
  Pair& pair = Get(ends_[a], ends_[b]);
  pair.blocked_until = world_->now() + outage;
  Lose({pair.end[0]->name(), pair.end[1]->name()}, damaged);
}

void Network::Lose(const Key& key, bool damaged) {
  Pair& pair = pairs_[key];
  const uint64_t lost = std::exchange(pair.connection, 0);
  if (lost == 0) return;
  for (int side = 0; side < 2; ++side) {
    if (!pair.end[side]->alive()) pair.view[side] = 0;
    world_->After(4 * Delay(),
                  [=, this] { HearLost(key, side, lost, damaged); });
  }
}

void Network::HearLost(const Key& key, int side, uint64_t lost, bool damaged) {
  Pair& pair = pairs_[key];
  if (Waits(*pair.end[side],
            [=, this] { HearLost(key, side, lost, damaged); })) {
    return;
  }
  if (pair.view[side] == lost) {
    pair.view[side] = 0;
    if (pair.end[side]->alive()) {
      pair.end[side]->OnPeerEvent(agent::PeerDisconnected{
          pair.end[1 - side]->name(), damaged, "the connection broke"});
    }
  }
  TryConnect(key);
}

bool Network::Waits(const PeerEnd& end, std::function<void()> what) {
  if (world_->now() >= end.stopped_until()) return false;
  world_->At(end.stopped_until(), std::move(what));
  return true;
}

void Network::Send(const PeerEnd& from, const std::string& to,
                   Message message) {
  auto it = std::find_if(ends_.begin(), ends_.end(),
                         [&](PeerEnd* end) { return end->name() == to; });
  if (it == ends_.end()) return;
  Pair& pair = Get(const_cast<PeerEnd*>(&from), *it);
  const int side = pair.end[0] == &from ? 0 : 1;
  const uint64_t connection = pair.view[side];
  if (connection == 0 || connection != pair.connection) return;
  Lane& lane = pair.lane[1 - side];
  const Key key = {pair.end[0]->name(), pair.end[1]->name()};
  const int copies = world_->random.Chance(options_.duplicate_permille) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    absl::Duration at = std::max(lane.last(), world_->now() + Delay());
    const auto* control = std::get_if<agent::PeerControl>(&message);
    if (control != nullptr && IsOrdered(control->control)) {
      at = lane.Arrival(world_->now(), Delay());
    }
    world_->At(at, [this, key, side, connection, message] {
      Deliver(key, side, connection, message, /*waited=*/false);
    });
  }
}

// What has `waited` lay in the buffer of an end that does not know yet that the
// connection is lost.
void Network::Deliver(const Key& key, int side, uint64_t connection,
                      const Message& message, bool waited) {
  const Pair& pair = pairs_[key];
  if (pair.view[1 - side] != connection ||
      (pair.connection != connection && !waited)) {
    return;
  }
  PeerEnd& end = *pair.end[1 - side];
  if (Waits(end, [this, key, side, connection, message] {
        Deliver(key, side, connection, message, /*waited=*/true);
      })) {
    return;
  }
  std::visit([&](const auto& m) { end.OnPeerEvent(m); }, message);
}

}  // namespace pactrain::sim
