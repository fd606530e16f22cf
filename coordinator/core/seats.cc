#include "coordinator/core/seats.h"

#include <algorithm>
#include <utility>

#include "base/weakened.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {

Seats::Seats(const protocol::Generation& generation)
    : members_(generation.members) {
  for (size_t m = 0; m < members_.size(); ++m) {
    for (size_t i = 0; i < members_[m].ranks.size(); ++i) {
      seats_.push_back({members_[m].ranks[i],
                        members_[m].attach_ids[i],
                        m,
                        State::kPresent,
                        absl::ZeroDuration(),
                        {}});
    }
  }
  std::sort(seats_.begin(), seats_.end(),
            [](const Seat& a, const Seat& b) { return a.rank < b.rank; });
  own_ = seats_.size();
}

Seats::Seats(const protocol::Generation& generation,
             const std::set<uint32_t>& detached,
             const std::vector<Holder>& away, absl::Duration now)
    : Seats(generation) {
  for (Seat& seat : seats_) {
    seat.state =
        detached.contains(seat.rank) ? State::kDetached : State::kAwaited;
    seat.silent_since = now;
  }
  for (const Holder& holder : away) {
    AddHolder(holder);
    seats_.back().state = State::kAwaited;
    seats_.back().silent_since = now;
  }
}

void Seats::Add(const protocol::Member& member, Seat seat) {
  if (seats_.size() < own_ + protocol::kMaxRanks) {
    seat.member = members_.size();
    members_.push_back(member);
  } else {
    // The oldest state is the least to lose.
    const auto oldest = seats_.begin() + static_cast<ptrdiff_t>(own_);
    seat.member = oldest->member;
    members_[seat.member] = member;
    seats_.erase(oldest);
  }
  seats_.push_back(std::move(seat));
}

void Seats::Carry(const Seats& before) {
  for (const Seat& seat : before.seats_) {
    const bool is_here =
        std::any_of(seats_.begin(), seats_.end(), [&](const Seat& own) {
          return TrainerOf(own.attach_id) == TrainerOf(seat.attach_id);
        });
    if (MayLive(seat) && !is_here) Add(before.MemberOf(seat), seat);
  }
}

void Seats::AddHolder(const Holder& holder) {
  protocol::Member member;
  member.agent = holder.agent;
  member.incarnation = holder.incarnation;
  member.site = holder.site;
  member.proves = holder.proves;
  Add(member, {holder.rank,
               holder.attach_id,
               0,
               State::kReturned,
               absl::ZeroDuration(),
               {}});
}

std::vector<Holder> Seats::Away() const {
  std::vector<Holder> away;
  for (size_t i = own_; i < seats_.size(); ++i) {
    const Seat& seat = seats_[i];
    if (!MayLive(seat)) continue;
    const protocol::Member& member = MemberOf(seat);
    away.push_back({seat.rank, seat.attach_id, member.agent, member.incarnation,
                    member.site, member.proves});
  }
  return away;
}

const Seats::Seat* Seats::Find(const protocol::Digest& attach_id) const {
  const Seat* seat = FindHolder(attach_id);
  return seat == nullptr || !IsOwn(*seat) ? nullptr : seat;
}

const Seats::Seat* Seats::FindTrainer(const protocol::Digest& attach_id) const {
  const Seat* seat = FindAnyOf(attach_id);  // Those of its own come first.
  return seat == nullptr || !IsOwn(*seat) ? nullptr : seat;
}

const Seats::Seat* Seats::FindAnyOf(const protocol::Digest& attach_id) const {
  for (const Seat& seat : seats_) {
    if (TrainerOf(seat.attach_id) == TrainerOf(attach_id)) return &seat;
  }
  return nullptr;
}

const Seats::Seat* Seats::FindHolder(const protocol::Digest& attach_id) const {
  for (const Seat& seat : seats_) {
    if (seat.attach_id == attach_id) return &seat;
  }
  return nullptr;
}

Seats::Seat* Seats::MutableFind(const protocol::Digest& attach_id) {
  return const_cast<Seat*>(FindHolder(attach_id));
}

bool Seats::Confirm(const protocol::Digest& attach_id) {
  Seat* seat = MutableFind(attach_id);
  if (seat == nullptr || HasLeft(*seat)) return false;
  seat->state = State::kPresent;
  seat->silent_since.reset();
  return true;
}

bool Seats::Leave(const protocol::Digest& attach_id, State how) {
  Seat* seat = MutableFind(attach_id);
  if (seat == nullptr || !MayLive(*seat)) return false;
  seat->state = how;
  seat->silent_since.reset();
  return true;
}

bool Seats::Changes(const protocol::Digest& attach_id, State how) const {
  return std::any_of(seats_.begin(), seats_.end(), [&](const Seat& seat) {
    return TrainerOf(seat.attach_id) == TrainerOf(attach_id) && MayLive(seat) &&
           seat.state != how;
  });
}

std::vector<std::pair<uint32_t, protocol::Digest>> Seats::LivingAt(
    const Agent& agent) const {
  std::vector<std::pair<uint32_t, protocol::Digest>> living;
  for (const Seat& seat : seats_) {
    if (MemberOf(seat).agent == agent.name &&
        MemberOf(seat).incarnation == agent.incarnation && MayLive(seat) &&
        seat.state != State::kUnknown) {
      living.emplace_back(seat.rank, seat.attach_id);
    }
  }
  return living;
}

bool Seats::Return(const protocol::Digest& attach_id, absl::Duration now,
                   State how) {
  bool found = false;
  for (Seat& seat : seats_) {
    if (attach_id.empty() ||
        TrainerOf(seat.attach_id) != TrainerOf(attach_id)) {
      continue;
    }
    found = true;
    if (seat.state == State::kKeptOut) continue;
    seat.state = how;
    seat.silent_since.reset();
    if (how == State::kUnknown) seat.silent_since = now;
  }
  return found;
}

bool Seats::LeaveFormer(const Agent& agent, const protocol::Digest& attach_id,
                        State how) {
  bool found = false;
  for (Seat& seat : seats_) {
    const protocol::Member& member = MemberOf(seat);
    if (TrainerOf(seat.attach_id) != TrainerOf(attach_id) ||
        (member.agent != agent.name && !PT_WEAKENED(AnyAgentSaysDead)) ||
        member.incarnation == agent.incarnation ||
        seat.state != State::kUnknown) {
      continue;
    }
    seat.state = how;
    seat.silent_since.reset();
    found = true;
  }
  return found;
}

void Seats::Replace(const std::string& agent, uint32_t rank) {
  if (rank < own_ && MemberOf(seats_[rank]).agent == agent) {
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
      if (!HasLeft(seat) && IsOwn(seat)) lost.push_back(seat.rank);
      seat.state = State::kUnknown;
      if (!seat.silent_since) seat.silent_since = now;
    } else {
      seat.state = State::kAwaited;
      seat.awaited_since = now;
      seat.silent_since.reset();
    }
  }
  return lost;
}

void Seats::OnAgentDisconnected(const Agent& agent, absl::Duration now) {
  for (Seat& seat : seats_) {
    if (MemberOf(seat).agent == agent.name &&
        MemberOf(seat).incarnation == agent.incarnation && !seat.silent_since) {
      seat.silent_since = now;
    }
  }
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
    if (IsOwn(seat)) lost.push_back(seat.rank);
  }
  return lost;
}

const Seats::Seat* Seats::FirstHeld(const Agents& agents,
                                    absl::Duration gone_after,
                                    absl::Duration now) const {
  for (const Seat& seat : seats_) {
    if (HasLeft(seat) || !IsOwn(seat)) continue;
    const protocol::Member& member = MemberOf(seat);
    if (!agents.IsGone(member.agent, member.incarnation, gone_after, now)) {
      return &seat;
    }
  }
  return nullptr;
}

const Seats::Seat* Seats::FirstHolder(absl::Duration presumed_dead,
                                      absl::Duration now) const {
  for (const Seat& seat : seats_) {
    const bool is_presumed_dead =
        seat.silent_since && now - *seat.silent_since >= presumed_dead;
    if (MayLive(seat) && !is_presumed_dead) return &seat;
  }
  return nullptr;
}

const Seats::Seat* Seats::FirstUnseen(const Agents& agents) const {
  for (const Seat& seat : seats_) {
    if (!IsAwaited(seat)) continue;
    if (seat.state == State::kAwaited || !IsHeard(seat, agents)) return &seat;
  }
  return nullptr;
}

bool Seats::AllLeft() const {
  return std::all_of(seats_.begin(), seats_.end(), [&](const Seat& seat) {
    return HasLeft(seat) || !IsOwn(seat);
  });
}

bool Seats::IsDeserted(size_t member) const {
  return std::any_of(seats_.begin(), seats_.end(), [&](const Seat& seat) {
    return IsOwn(seat) && seat.member == member && MayLive(seat) &&
           seat.state != State::kAwaited;
  });
}

std::set<std::pair<std::string, std::string>> Seats::AgentsOfLiving() const {
  std::set<std::pair<std::string, std::string>> agents;
  for (const Seat& seat : seats_) {
    if (!IsOwn(seat) || !MayLive(seat)) continue;
    agents.insert({MemberOf(seat).agent, MemberOf(seat).site});
  }
  return agents;
}

std::vector<const Seats::Seat*> Seats::LeftInOrder() const {
  std::vector<const Seat*> left;
  for (const Seat& seat : seats_) {
    if (IsOwn(seat) && seat.state == State::kDetached) left.push_back(&seat);
  }
  return left;
}

bool Seats::IsHeard(const Seat& seat, const Agents& agents) const {
  const protocol::Member& member = MemberOf(seat);
  const Agent* agent = agents.Find(member.agent);
  return seat.state != State::kUnknown && agent != nullptr &&
         agent->connected() && agent->incarnation == member.incarnation;
}

size_t Seats::CountAlive(const Agents& agents, bool stragglers) const {
  return std::count_if(seats_.begin(), seats_.end(), [&](const Seat& s) {
    return IsAwaited(s, stragglers) && IsHeard(s, agents);
  });
}

size_t Seats::CountHolders(const Agents& agents) const {
  return std::count_if(seats_.begin(), seats_.end(), [&](const Seat& s) {
    return MayLive(s) && IsHeard(s, agents);
  });
}

size_t Seats::CountUnknown(const Agents& agents, absl::Duration since,
                           absl::Duration timeout, absl::Duration now,
                           bool stragglers) const {
  return std::count_if(seats_.begin(), seats_.end(), [&](const Seat& s) {
    const absl::Duration silent =
        PT_WEAKENED(AbsentFromTheEnd)
            ? since
            : std::max(since, s.silent_since.value_or(since));
    return IsAwaited(s, stragglers) && !IsHeard(s, agents) &&
           now - silent < timeout;
  });
}

std::set<uint32_t> Seats::Detached() const {
  std::set<uint32_t> ranks;
  for (const Seat& seat : seats_) {
    if (IsOwn(seat) &&
        (seat.state == State::kDetached || seat.state == State::kKeptOut)) {
      ranks.insert(seat.rank);
    }
  }
  return ranks;
}

}  // namespace pactrain::coordinator
