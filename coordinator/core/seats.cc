#include "coordinator/core/seats.h"

#include <algorithm>

#include "base/weakened.h"

namespace pactrain::coordinator {

Seats::Seats(const protocol::Generation& generation, bool present,
             const std::set<uint32_t>& detached)
    : members_(generation.members) {
  for (size_t m = 0; m < members_.size(); ++m) {
    for (size_t i = 0; i < members_[m].ranks.size(); ++i) {
      seats_.push_back({members_[m].ranks[i], members_[m].attach_ids[i], m,
                        present ? State::kPresent : State::kAwaited,
                        absl::ZeroDuration()});
    }
  }
  std::sort(seats_.begin(), seats_.end(),
            [](const Seat& a, const Seat& b) { return a.rank < b.rank; });
  for (Seat& seat : seats_) {
    if (detached.contains(seat.rank)) seat.state = State::kDetached;
  }
}

const Seats::Seat* Seats::Find(const protocol::Digest& attach_id) const {
  for (const Seat& seat : seats_) {
    if (seat.attach_id == attach_id) return &seat;
  }
  return nullptr;
}

bool Seats::Confirm(const protocol::Digest& attach_id) {
  const Seat* seat = Find(attach_id);
  if (seat == nullptr || HasLeft(*seat)) return false;
  seats_[seat->rank].state = State::kPresent;
  return true;
}

bool Seats::Leave(const protocol::Digest& attach_id, State how) {
  const Seat* seat = Find(attach_id);
  if (seat == nullptr || !MayLive(*seat)) return false;
  seats_[seat->rank].state = how;
  return true;
}

void Seats::Return(const protocol::Digest& attach_id, State how) {
  const Seat* seat = Find(attach_id);
  if (seat == nullptr || seat->state == State::kKeptOut) return;
  seats_[seat->rank].state = how;
}

void Seats::Replace(const std::string& agent, uint32_t rank) {
  if (rank < seats_.size() && MemberOf(seats_[rank]).agent == agent) {
    seats_[rank].state = State::kLeft;
  }
}

std::vector<uint32_t> Seats::OnAgentConnected(const Agent& agent,
                                              absl::Duration now) {
  std::vector<uint32_t> lost;
  for (Seat& seat : seats_) {
    if (MemberOf(seat).agent != agent.name || !MayLive(seat)) continue;
    if (MemberOf(seat).incarnation != agent.incarnation) {
      if (PT_WEAKENED(RestartedAgentKeepsTrainers)) {
        seat.state = State::kPresent;
        continue;
      }
      if (!HasLeft(seat)) lost.push_back(seat.rank);
      seat.state = State::kUnknown;
    } else {
      seat.state = State::kAwaited;
      seat.awaited_since = now;
    }
  }
  return lost;
}

std::vector<uint32_t> Seats::Expire(const Agents& agents,
                                    absl::Duration timeout,
                                    absl::Duration now) {
  std::vector<uint32_t> lost;
  for (Seat& seat : seats_) {
    if (seat.state != State::kAwaited) continue;
    const Agent* agent = agents.Find(MemberOf(seat).agent);
    if (agent == nullptr || !agent->connected()) continue;
    if (now - seat.awaited_since <= timeout) continue;
    seat.state = State::kLeft;
    lost.push_back(seat.rank);
  }
  return lost;
}

const Seats::Seat* Seats::FirstHeld(const Agents& agents,
                                    absl::Duration gone_after,
                                    absl::Duration now) const {
  for (const Seat& seat : seats_) {
    if (HasLeft(seat)) continue;
    const protocol::Member& member = MemberOf(seat);
    if (!agents.IsGone(member.agent, member.incarnation, gone_after, now)) {
      return &seat;
    }
  }
  return nullptr;
}

bool Seats::AllLeft() const {
  return std::all_of(seats_.begin(), seats_.end(), HasLeft);
}

bool Seats::IsHeard(const Seat& seat, const Agents& agents) const {
  const protocol::Member& member = MemberOf(seat);
  const Agent* agent = agents.Find(member.agent);
  return seat.state != State::kUnknown && agent != nullptr &&
         agent->connected() && agent->incarnation == member.incarnation;
}

size_t Seats::CountAlive(const Agents& agents) const {
  return std::count_if(seats_.begin(), seats_.end(), [&](const Seat& s) {
    return MayLive(s) && IsHeard(s, agents);
  });
}

size_t Seats::CountUnknown(const Agents& agents) const {
  return std::count_if(seats_.begin(), seats_.end(), [&](const Seat& s) {
    return MayLive(s) && !IsHeard(s, agents);
  });
}

std::set<uint32_t> Seats::Detached() const {
  std::set<uint32_t> ranks;
  for (const Seat& seat : seats_) {
    if (seat.state == State::kDetached || seat.state == State::kKeptOut) {
      ranks.insert(seat.rank);
    }
  }
  return ranks;
}

bool Seats::HasAgent(const std::string& agent) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](const auto& m) { return m.agent == agent; });
}

}  // namespace pactrain::coordinator
