#include "coordinator/core/group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/planner.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/rank_list.h"

namespace pactrain::coordinator {

using protocol::EndGeneration;
using protocol::Generation;
using protocol::GroupWaiting;
using protocol::JoinRefused;
using protocol::Member;
using protocol::StartGeneration;
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
  if (running() && elastic() &&
      trainer.last_generation == generation_->number) {
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
      End("a trainer detached while others still train", c);
    }
  }
  TryForm(c);
  RecordDetached(c);
  Decide(c);
  SendWaiting(c);
}

void Group::TryForm(Context& c) {
  if (c.read_only) return;
  if (!elastic()) {
    TryFormNew(c);
  } else if (running()) {
    TryAdmit(c);
  } else if (AnyReturned(membership_.launches(), generation_->number)) {
    TryRegroup(c);
  } else if (!IsAwaited(MakeRemains(c), c.options.regroup_timeout)) {
    TryFormNew(c);
  }
}

// A launch as a new job, once nobody of the last one can be there any more.
void Group::TryFormNew(Context& c) {
  const Launch* launch = membership_.Complete();
  if (launch == nullptr) return;
  if (generation_ && seats_.FirstHeld(c.agents, c.options.gone_after, c.now))
    return;
  if (running()) {
    const std::string name = launch->name;
    End(absl::StrCat("launch '", name, "' takes over: no agent of launch '",
                     generation_->launch, "' has been heard for ",
                     absl::FormatDuration(c.options.gone_after)),
        c);
    return;  // End() formed it.
  }
  for (const auto& [rank, candidate] : launch->by_rank) {
    const uint64_t last = candidate.trainer.last_generation;
    if (last == 0) continue;
    const std::string name = launch->name;
    Refuse(membership_.Refuse(
               name,
               absl::StrCat("rank ", rank, " holds the state of generation ",
                            last, "; nobody is left who holds that of ",
                            generation_ ? generation_->number : 0,
                            ": load the last checkpoint at all ranks and start "
                            "them again"),
               c.now),
           c);
    return;
  }
  detached_.clear();
  Form(LineupOf(*launch), c);
}

Generation Group::MakeGeneration(const Lineup& lineup, Context& c) const {
  Generation generation;
  generation.group = id_;
  generation.term = c.term;
  generation.number = generation_ ? generation_->number + 1 : 1;
  const protocol::Trainer& first =
      lineup.trainers[lineup.donor.value_or(0)].trainer;
  generation.world_size = static_cast<uint32_t>(lineup.trainers.size());
  generation.launch = first.launch;
  generation.on_shrink = first.on_shrink;
  generation.donor = lineup.donor;
  generation.needs_state = lineup.needs_state;
  generation.base_step = std::max(SafeNextStep(), lineup.next_step);
  std::map<std::pair<std::string, std::string>, Member> members;
  std::set<std::string> sites;
  for (uint32_t rank = 0; rank < generation.world_size; ++rank) {
    const Candidate& candidate = lineup.trainers[rank];
    const Agent& agent = *c.agents.Find(candidate.agent);
    Member& member = members[{agent.site, agent.name}];
    member.agent = agent.name;
    member.incarnation = agent.incarnation;
    member.site = agent.site;
    member.data_address = agent.data_address;
    member.ranks.push_back(rank);
    member.attach_ids.push_back(candidate.trainer.attach_id);
    sites.insert(agent.site);
  }
  for (auto& [key, member] : members)
    generation.members.push_back(std::move(member));
  generation.sites.assign(sites.begin(), sites.end());
  generation.plan =
      MakePlan(generation.sites, c.options.links, c.options.site_rates);
  return generation;
}

void Group::Form(const Lineup& lineup, Context& c) {
  Generation generation = MakeGeneration(lineup, c);
  generation.decision = decisions_.Start(FullDecision(
      c.options, absl::StrCat("generation ", generation.number,
                              " starts FULL: all elements are sent until "
                              "a mask set is agreed")));
  seats_ = Seats(generation, /*present=*/true);
  roster_.clear();
  for (const Candidate& candidate : lineup.trainers) {
    roster_[candidate.trainer.attach_id] = candidate;
  }
  membership_.Remove(lineup.trainers);
  votes_ = MaskVotes(generation.world_size);
  mask_state_ = MaskState::kMissing;
  last_equal_ = {};
  logged_mask_ = logged_layout_ = {};
  refused_.reset();
  committed_before_ += progress_.committed_count();
  failed_before_ += progress_.failed_attempts();
  progress_ = {};
  noise_ = Noise(generation);
  norms_.Begin(generation.members, /*anew=*/!generation.donor);
  noise_factor_ = kUnmeasuredNoiseFactor;
  in_force_unknown_ = false;
  last_step_known_ = false;
  detached_at_.reset();
  end_due_.reset();
  ended_ = false;
  for (const Member& member : generation.members)
    waiting_told_.erase(member.agent);
  generation_ = std::move(generation);
  c.effects.records.push_back(GenerationFormed{*generation_});
  recorded_.ranks.clear();
  if (!generation_->donor) recorded_.of_launch.clear();
  RecordDetached(c);
  reserved_step_ = generation_->base_step + kReserveSteps;
  SendToMembers(StartGeneration{*generation_}, c);
  c.effects.Log(absl::StrCat(
      "job ", id_.ToString(), ": generation ", generation_->number,
      " of launch '", generation_->launch, "' with ", generation_->world_size,
      " trainers at ", generation_->members.size(), " agents in ",
      generation_->sites.size(), " sites from step ", generation_->base_step,
      generation_->donor
          ? absl::StrCat(", with the state of rank ", *generation_->donor)
          : ""));
}

// By value: the reason may be end_due_ itself, which is reset here.
void Group::End(std::string reason, Context& c) {
  if (c.read_only) {
    end_due_ = reason;
    return;
  }
  ended_ = true;
  end_due_.reset();
  end_reason_ = reason;
  ended_at_ = c.now;
  decisions_.Revoke();
  c.effects.records.push_back(
      GenerationEnded{id_, generation_->number, reason, SafeNextStep()});
  SendToMembers(EndGeneration{id_, generation_->number, reason}, c);
  c.effects.Log(absl::StrCat("job ", id_.ToString(), ": generation ",
                             generation_->number, " ended: ", reason));
  TryForm(c);
}

uint64_t Group::NextStep() const {
  if (progress_.committed_count() > 0) return progress_.committed_step() + 1;
  if (progress_.any()) return generation_->base_step;
  return reserved_step_;
}

uint64_t Group::SafeNextStep() const {
  if (last_step_known_ && progress_.any()) return NextStep();
  return std::max(reserved_step_, NextStep());
}

std::string Group::WaitingReason(const Context& c) const {
  if (elastic() && !c.read_only) {
    const std::string reason = RegroupReason(c);
    if (!reason.empty()) return absl::StrCat(reason, OtherSites());
  }
  const Launch* launch = membership_.Complete();
  if (launch == nullptr) {
    return absl::StrCat(membership_.WaitingReason(), OtherSites());
  }
  if (c.read_only)
    return "the coordinator's journal cannot be written; see its log";
  const Seats::Seat* held =
      generation_ ? seats_.FirstHeld(c.agents, c.options.gone_after, c.now)
                  : nullptr;
  if (held == nullptr) return "forming a generation";
  return absl::StrCat("waiting for ", SeatText(held->rank), " of launch '",
                      generation_->launch, "' to end: generation ",
                      generation_->number, ended_ ? " is over" : " still runs");
}

std::string Group::OtherSites() const {
  if (!generation_ || !NamesSites(generation_->launch)) return "";
  for (const Launch& launch : membership_.launches()) {
    if (!NamesSites(launch.name) || launch.name == generation_->launch) {
      continue;
    }
    return absl::StrCat(
        "; launch '", launch.name, "' names other sites than launch '",
        generation_->launch,
        "', which this job runs with: set PACTRAIN_SITES to the same value, or "
        "unset it to join as a newcomer");
  }
  return "";
}

void Group::SendWaiting(Context& c) {
  if (membership_.empty()) return;
  const std::string reason = WaitingReason(c);
  for (const std::string& name : membership_.AgentNames()) {
    std::string& told = waiting_told_[name];
    if (told == reason) continue;
    told = reason;
    c.effects.sends.push_back(
        {c.agents.Find(name)->stream, GroupWaiting{id_, reason}});
  }
}

bool Group::idle(const Context& c) const {
  return membership_.idle(c.now) && !running() &&
         seats_.FirstHeld(c.agents, c.options.gone_after, c.now) == nullptr;
}

}  // namespace pactrain::coordinator
