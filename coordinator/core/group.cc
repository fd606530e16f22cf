#include "coordinator/core/group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/rank_list.h"

namespace pactrain::coordinator {

using protocol::EndGeneration;
using protocol::GroupWaiting;
using protocol::JoinRefused;
using protocol::Member;
using protocol::TrainerJoined;

Group::Group(const protocol::GroupId& id, const Options& options)
    : id_(id), membership_(options.refusal_time) {}

Group::Group(const protocol::GroupId& id, const Options& options,
             const Recovered::Group& recovered, absl::Duration now)
    : id_(id),
      membership_(options.refusal_time),
      generation_(recovered.generation),
      ended_(recovered.ended),
      end_reason_(recovered.end_reason),
      ended_at_(now),
      seats_(recovered.generation, /*present=*/false, recovered.detached_ranks),
      detached_(recovered.detached_of),
      recorded_{id, recovered.generation.number, recovered.detached_ranks,
                recovered.detached_of},
      reserved_step_(recovered.reserved_step),
      noise_(recovered.generation),
      pin_(recovered.pin),
      votes_(recovered.generation.world_size),
      decisions_(recovered),
      in_force_unknown_(true) {
  if (!recovered.detached_ranks.empty()) detached_at_ = now;
  // Whoever had the state when it began has been in the one before.
  for (const Member& member : recovered.generation.members) {
    const bool newcomers = std::all_of(
        member.ranks.begin(), member.ranks.end(), [&](uint32_t rank) {
          const auto& needs = recovered.generation.needs_state;
          return std::find(needs.begin(), needs.end(), rank) != needs.end();
        });
    if (!newcomers) connected_.insert(member.agent);
  }
}

const Member* Group::FindMember(const Agent& agent) const {
  if (!generation_) return nullptr;
  for (const Member& member : generation_->members) {
    if (member.agent == agent.name && member.incarnation == agent.incarnation) {
      return &member;
    }
  }
  return nullptr;
}

void Group::SendToMembers(const protocol::CoordinatorMessage& message,
                          Context& c) {
  for (const Member& member : generation_->members) {
    const Agent* agent = c.agents.Find(member.agent);
    if (agent != nullptr && agent->connected() &&
        agent->incarnation == member.incarnation) {
      c.effects.sends.push_back({agent->stream, message});
    }
  }
}

std::string Group::SeatText(uint32_t rank) const {
  for (const Member& member : generation_->members) {
    if (std::count(member.ranks.begin(), member.ranks.end(), rank) > 0) {
      return absl::StrCat("rank ", rank, " (agent '", member.agent, "', site '",
                          member.site, "')");
    }
  }
  return absl::StrCat("rank ", rank);
}

void Group::OnJoined(const Agent& agent, const TrainerJoined& joined,
                     Context& c) {
  const protocol::Trainer& trainer = joined.trainer;
  if (!SpeaksFor(agent, trainer.attach_id, c)) return;
  if (generation_ && seats_.Find(trainer.attach_id) != nullptr) {
    Rejoin(agent, joined, c);
  } else if (joined.generation == 0) {
    Enlist(agent, trainer, c);
  } else {
    // Of a generation that is over for us, or that another history formed.
    c.effects.sends.push_back(
        {agent.stream,
         EndGeneration{
             id_, joined.generation,
             absl::StrCat("rank ", trainer.rank, " has no place in generation ",
                          joined.generation, " any more")}});
  }
}

void Group::Enlist(const Agent& agent, const protocol::Trainer& trainer,
                   Context& c) {
  const Candidate candidate{trainer, agent.name, agent.site,
                            agent.data_address};
  if (ended_ && !elastic()) seats_.Replace(agent.name, trainer.rank);
  Refuse(membership_.Join(candidate, c.now), c);
  seats_.Return(trainer.last_attach_id);
  if (const auto it = detached_.find(trainer.launch); it != detached_.end()) {
    it->second.erase(trainer.rank);
  }
  // A member that attaches again: at its agent the generation is over.
  if (running() && elastic() &&
      seats_.Find(trainer.last_attach_id) != nullptr) {
    End(absl::StrCat("agent '", agent.name, "' (site '", agent.site,
                     "') ended it"),
        c);
  }
  TryForm(c);
  const std::string reason = WaitingReason(c);
  if (membership_.AgentNames().contains(agent.name) &&
      waiting_told_[agent.name] != reason) {
    waiting_told_[agent.name] = reason;
    c.effects.sends.push_back({agent.stream, GroupWaiting{id_, reason}});
  }
}

void Group::Refuse(const std::vector<Membership::Refusal>& refusals,
                   Context& c) {
  for (const Membership::Refusal& refusal : refusals) {
    const Candidate& candidate = refusal.candidate;
    const Agent* agent = c.agents.Find(candidate.agent);
    if (agent == nullptr || !agent->connected()) continue;
    c.effects.sends.push_back(
        {agent->stream,
         JoinRefused{id_, candidate.trainer.rank, candidate.trainer.attach_id,
                     refusal.reason}});
  }
  if (!refusals.empty()) {
    c.effects.Warn(absl::StrCat("job ", id_.ToString(), ": refused ",
                                refusals.size(),
                                " trainers: ", refusals.front().reason));
  }
}

bool Group::SpeaksFor(const Agent& agent, const protocol::Digest& attach_id,
                      Context& c) const {
  const Candidate* waiting = membership_.Find(attach_id);
  const auto listed = roster_.find(attach_id);
  bool speaks = true;  // For one that nobody has heard of.
  if (waiting != nullptr) {
    speaks = waiting->agent == agent.name;
  } else if (listed != roster_.end()) {
    speaks = listed->second.agent == agent.name;
  } else if (seats_.Find(attach_id) != nullptr) {
    // After a restart: whose seat it is, is not known yet.
    speaks = FindMember(agent) != nullptr;
  }
  if (!speaks) {
    c.effects.Warn(absl::StrCat("job ", id_.ToString(), ": agent '", agent.name,
                                "' spoke for a trainer that is not its own; "
                                "ignored"));
  }
  return speaks;
}

void Group::OnLeft(const Agent& agent, const protocol::TrainerLeft& left,
                   Context& c) {
  if (!SpeaksFor(agent, left.attach_id, c)) return;
  const bool detached = left.reason == "detached";
  const auto how = left.may_return ? Seats::State::kAlive
                   : detached      ? Seats::State::kDetached
                                   : Seats::State::kLeft;
  if (const auto waiting = membership_.Leave(left.attach_id)) {
    seats_.Return(waiting->trainer.last_attach_id, how);
    return;
  }
  if (!generation_ || !seats_.Leave(left.attach_id, how)) return;
  if (const auto it = roster_.find(left.attach_id); it != roster_.end()) {
    const protocol::Trainer& trainer = it->second.trainer;
    if (detached) NoteDetached(trainer);
    if (how != Seats::State::kAlive) roster_.erase(it);
  }
  last_step_known_ = true;
  NoteUnreached(agent, left, c);
  if (ended_) {
    TryForm(c);
  } else if (left.generation_ended) {
    End(left.reason, c);
  } else if (!detached) {
    End(absl::StrCat(SeatText(left.rank), " left: ", left.reason), c);
  } else if (seats_.AllLeft()) {
    End("all trainers detached", c);
  } else if (!detached_at_) {
    // The others may still be handed the last step's result.
    detached_at_ = c.now;
  }
}

void Group::DropWaiting(const Agent& agent) {
  for (const Candidate& candidate : membership_.DropAgent(agent.name)) {
    seats_.Return(candidate.trainer.last_attach_id, Seats::State::kUnknown);
  }
}

void Group::OnAgentConnected(const Agent& agent, Context& c) {
  DropWaiting(agent);
  waiting_told_.erase(agent.name);
  const std::vector<uint32_t> lost = seats_.OnAgentConnected(agent, c.now);
  if (!running()) return;
  if (!lost.empty()) {
    End(absl::StrCat("agent '", agent.name, "' (site '", agent.site,
                     "') was restarted, which lost ", RankList(lost)),
        c);
  } else if (decisions_.prepared() && FindMember(agent) != nullptr) {
    c.effects.sends.push_back(
        {agent.stream,
         protocol::Prepare{id_, generation_->number, *decisions_.prepared()}});
  }
}

void Group::OnAgentDisconnected(const Agent& agent) {
  DropWaiting(agent);
  waiting_told_.erase(agent.name);
}

void Group::Tick(Context& c) {
  const std::vector<uint32_t> lost =
      seats_.Expire(c.agents, c.options.rejoin_timeout, c.now);
  if (running()) {
    if (end_due_) {
      End(*end_due_, c);
    } else if (!lost.empty()) {
      End(absl::StrCat(
              SeatText(lost.front()),
              " was not named again when its agent's stream was opened anew"),
          c);
    } else if (detached_at_ &&
               c.now - *detached_at_ >= (elastic() ? c.options.leave_grace
                                                   : c.options.detach_grace)) {
      const std::set<uint32_t> left = seats_.Detached();
      End(absl::StrCat(RankList({left.begin(), left.end()}),
                       protocol::kEndedInOrder, " while others still train"),
          c);
    }
  }
  TryForm(c);
  RecordDetached(c);
  Decide(c);
  SendWaiting(c);
}

bool Group::idle(const Context& c) const {
  return membership_.idle(c.now) && !running() &&
         seats_.FirstHeld(c.agents, c.options.gone_after, c.now) == nullptr;
}

}  // namespace pactrain::coordinator
