#include "coordinator/core/group.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utc_text.h"
#include "base/weakened.h"
#include "coordinator/core/rank_list.h"
#include "protocol/local_trainers.h"

namespace pactrain::coordinator {

namespace {

constexpr char kAllDetached[] = "all trainers detached";

}  // namespace

using protocol::EndGeneration;
using protocol::GroupWaiting;
using protocol::JoinRefused;
using protocol::Member;
using protocol::TrainerJoined;

Group::Group(const protocol::GroupId& id, const Options& options,
             absl::Duration now)
    : id_(id), since_(now), membership_(options.refusal_time) {}

Group::Group(const protocol::GroupId& id, const Options& options,
             const Recovered::Group& recovered, absl::Duration now)
    : id_(id),
      since_(now),
      membership_(options.refusal_time),
      generation_(recovered.generation),
      ended_(recovered.ended),
      end_reason_(recovered.end_reason),
      ended_at_(now),
      seats_(recovered.generation, recovered.detached_ranks, recovered.away,
             now),
      ended_lineages_(recovered.ended_lineages),
      detached_(recovered.detached_of),
      recorded_{id, recovered.generation.number, recovered.detached_ranks,
                recovered.detached_of},
      reserved_step_(recovered.reserved_step),
      noise_(recovered.generation),
      pin_(recovered.pin),
      votes_(recovered.generation.world_size),
      decisions_(recovered),
      in_force_unknown_(true) {
  NoteOwners();
  testimony_.Begin(recovered.generation);
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

std::string Group::Context::TimeText(absl::Duration at) const {
  return base::UtcText(epoch + at);
}

std::string Group::SeatText(const Seats::Seat& seat) const {
  const Member& member = seats_.MemberOf(seat);
  return absl::StrCat("rank ", seat.rank, " (agent '", member.agent,
                      "', site '", member.site, "')");
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

// As an agent says it. No step was committed since: each needs all ranks.
std::string Group::EndedInOrderText() const {
  const std::set<uint32_t> left = seats_.Detached();
  std::string text = "a rank";  // That has attached again by now.
  if (!left.empty()) text = absl::StrCat("rank ", *left.begin());
  for (const Member& member : generation_->members) {
    if (!left.empty() && std::count(member.ranks.begin(), member.ranks.end(),
                                    *left.begin()) > 0) {
      absl::StrAppend(&text, " at agent ", member.agent, " (site ", member.site,
                      ")");
    }
  }
  if (left.size() > 1) {
    absl::StrAppend(&text, " and ", left.size() - 1, " more");
  }
  absl::StrAppend(&text, protocol::kEndedInOrder);
  if (!progress_.any()) {
    return text + ", after which step no agent has said to this coordinator";
  }
  if (progress_.committed_count() == 0) return text + " before the first step";
  return absl::StrCat(text, " after step ", progress_.committed_step());
}

// By its reason, which the journal has, too.
bool Group::EndedInOrder() const {
  return end_reason_ == kAllDetached || IsOver(generation_->lineage.id) ||
         absl::StrContains(end_reason_, protocol::kEndedInOrder);
}

void Group::OnLocalTrainers(const Agent& agent,
                            const protocol::LocalTrainers& local, Takes takes,
                            Context& c) {
  if (local.revision != 0) {
    uint64_t& newest = revisions_[agent.name];
    if (local.revision <= newest && !PT_WEAKENED(OlderWordsOfAgentsCount)) {
      return;  // Said again, or overtaken.
    }
    newest = local.revision;
  }
  // How far those came who left.
  if (local.report) {
    testimony_.NoteReport(agent, *local.report);
    OnReport(agent, *local.report, c);
  }
  for (const protocol::TrainerLeft& left : local.left) OnLeft(agent, left, c);
  if (local.revision != 0 && !PT_WEAKENED(UnnamedTrainersStay)) {
    OnUnnamed(agent, local, c);
  }
  for (const TrainerJoined& joined : local.here) {
    if (takes(joined)) OnJoined(agent, joined, c);
  }
  for (const protocol::MaskVote& vote : local.votes) OnVote(agent, vote, c);
}

void Group::OnUnnamed(const Agent& agent, const protocol::LocalTrainers& local,
                      Context& c) {
  std::vector<std::pair<uint32_t, protocol::Digest>> there =
      seats_.LivingAt(agent);
  for (const Candidate* candidate : AllOf(membership_.launches())) {
    if (candidate->agent != agent.name) continue;
    there.emplace_back(candidate->trainer.rank, candidate->trainer.attach_id);
  }
  for (const auto& [rank, attach_id] : there) {
    if (FindHere(local, attach_id) != nullptr ||
        FindLeft(local, attach_id) != nullptr) {
      continue;
    }
    const bool again = std::any_of(
        local.here.begin(), local.here.end(),
        [&id = attach_id](const TrainerJoined& other) {
          return protocol::IsSameTrainer(other.trainer.attach_id, id);
        });
    // Its seat is free as soon as it waits.
    if (again && !running() && membership_.Find(attach_id) == nullptr) continue;
    OnLeft(agent,
           {id_, rank, attach_id,
            again ? "attached again" : "is not named by its agent any more",
            /*generation_ended=*/false, /*may_return=*/again},
           c);
  }
}

void Group::OnJoined(const Agent& agent, const TrainerJoined& joined,
                     Context& c) {
  const protocol::Trainer& trainer = joined.trainer;
  if (const Candidate* waiting = membership_.Find(trainer.attach_id);
      waiting != nullptr && waiting->agent == agent.name &&
      waiting->trainer == trainer && joined.generation == 0) {
    return;
  }
  if (!HearsOf(agent, trainer.attach_id, c)) return;
  if (generation_ && seats_.Find(trainer.attach_id) != nullptr) {
    Rejoin(agent, joined, c);
  } else if (joined.generation == 0) {
    Enlist(agent, joined, c);
  } else {
    // Of a generation that is over for us, or that another history formed.
    seats_.Confirm(trainer.attach_id);
    c.effects.sends.push_back(
        {agent.stream,
         EndGeneration{
             id_, joined.generation,
             absl::StrCat("rank ", trainer.rank, " has no place in generation ",
                          joined.generation, " any more")}});
  }
}

void Group::Enlist(const Agent& agent, const TrainerJoined& joined,
                   Context& c) {
  const protocol::Trainer& trainer = joined.trainer;
  const Candidate candidate{trainer, agent.name, agent.site, agent.data_address,
                            joined.proven};
  // Before it changes anything.
  if (const auto unproven = WhyUnproven(candidate)) {
    return Refuse({{candidate, *unproven}}, c);
  }
  TakeUpUnknown(candidate, c);
  if (const auto over = WhyOver(candidate, c)) {
    return RefuseOver(candidate, *over, c);
  }
  if (IsLater(candidate, c)) {
    c.effects.Warn(
        absl::StrCat("job ", id_.ToString(), ": ", LaterText(candidate)));
  }
  if (HasState(candidate)) {
    testimony_.NoteClaim(candidate);
    NoteFirstWord(candidate);
  }
  if (ended_ && !elastic()) seats_.Replace(agent.name, trainer.rank);
  Refuse(membership_.Join(candidate, c.now), c);
  const bool is_member = running() && seats_.FindTrainer(trainer.attach_id);
  if (!seats_.Return(trainer.attach_id, c.now) && generation_ &&
      HasState(candidate)) {
    seats_.AddHolder({trainer.rank, trainer.attach_id, agent.name,
                      agent.incarnation, agent.site, agent.proves});
  }
  if (const auto it = detached_.find(trainer.launch); it != detached_.end()) {
    it->second.erase(trainer.rank);
  }
  // A member that attaches again: at its agent the generation is over.
  if (is_member && elastic()) {
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

bool Group::SpeaksFor(const Agent& agent,
                      const protocol::Digest& attach_id) const {
  if (const Candidate* waiting = membership_.Find(attach_id)) {
    return waiting->agent == agent.name;
  }
  if (const auto it = roster_.find(attach_id); it != roster_.end()) {
    return it->second.agent == agent.name;
  }
  if (const Seats::Seat* seat = seats_.FindHolder(attach_id)) {
    const Member& member = seats_.MemberOf(*seat);
    return member.agent == agent.name &&
           member.incarnation == agent.incarnation;
  }
  return true;  // Nobody has heard of it.
}

bool Group::HearsOf(const Agent& agent, const protocol::Digest& attach_id,
                    Context& c) const {
  if (SpeaksFor(agent, attach_id)) return true;
  std::string text =
      absl::StrCat("job ", id_.ToString(), ": agent '", agent.name,
                   "' spoke for a trainer that is not its own; ignored");
  // Once for all of a message.
  const std::vector<Effects::Event>& events = c.effects.events;
  if (events.empty() || events.back().text != text) {
    c.effects.Warn(std::move(text));
  }
  return false;
}

void Group::OnLeft(const Agent& agent, const protocol::TrainerLeft& left,
                   Context& c) {
  const bool detached = left.reason == "detached";
  const auto how = left.may_return ? (left.straggled ? Seats::State::kStraggled
                                                     : Seats::State::kAlive)
                   : detached      ? Seats::State::kDetached
                                   : Seats::State::kLeft;
  if (!seats_.Changes(left.attach_id, how) &&
      membership_.Find(left.attach_id) == nullptr) {
    return;  // It is known, or nobody of ours.
  }
  if (!left.may_return && seats_.LeaveFormer(agent, left.attach_id, how)) {
    if (const auto it = roster_.find(left.attach_id); it != roster_.end()) {
      if (detached) NoteDetached(it->second.trainer);
      roster_.erase(it);
    }
    return TryForm(c);
  }
  if (!HearsOf(agent, left.attach_id, c)) return;
  if (const auto waiting = membership_.Leave(left.attach_id)) {
    seats_.Return(waiting->trainer.attach_id, c.now, how);
    return TryForm(c);
  }
  if (!generation_ || !seats_.Leave(left.attach_id, how)) return;
  // Of an earlier generation.
  if (seats_.Find(left.attach_id) == nullptr) return TryForm(c);
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
    End(kAllDetached, c);
  } else if (!detached_at_) {
    // The others may still be handed the last step's result.
    detached_at_ = c.now;
  }
}

void Group::DropWaiting(const Agent& agent, absl::Duration now) {
  for (const Candidate& candidate : membership_.DropAgent(agent.name)) {
    seats_.Return(candidate.trainer.attach_id, now, Seats::State::kUnknown);
  }
}

void Group::OnAgentConnected(const Agent& agent, Context& c) {
  DropWaiting(agent, c.now);
  waiting_told_.erase(agent.name);
  revisions_.erase(agent.name);
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

void Group::OnAgentDisconnected(const Agent& agent, absl::Duration now) {
  DropWaiting(agent, now);
  waiting_told_.erase(agent.name);
  revisions_.erase(agent.name);
  seats_.OnAgentDisconnected(agent, now);
}

void Group::Tick(Context& c) {
  const std::vector<uint32_t> lost =
      seats_.Expire(c.agents, c.options.rejoin_timeout, c.now);
  if (running()) {
    // Reports that came while nothing could be written.
    if (progress_.any()) ReserveSteps(c);
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
      End(EndedInOrderText(), c);
    }
  }
  TryForm(c);
  NoteMode(c);
  RecordDetached(c);
  Decide(c);
  SendWaiting(c);
}

bool Group::idle(const Context& c) const {
  return membership_.idle(c.now) && !running() &&
         seats_.FirstHeld(c.agents, c.options.gone_after, c.now) == nullptr;
}

}  // namespace pactrain::coordinator
