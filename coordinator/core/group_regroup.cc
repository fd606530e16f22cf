// Ranks that come and go: the end of a generation is the beginning of the next.
#include "coordinator/core/group.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/weakened.h"
#include "coordinator/core/reach.h"

namespace pactrain::coordinator {

using protocol::EndGeneration;
using protocol::JoinRefused;
using protocol::StartGeneration;
using protocol::TrainerJoined;

namespace {

bool AnyOld(const Launch& launch) {
  return std::any_of(launch.by_rank.begin(), launch.by_rank.end(),
                     [](const auto& entry) { return HasState(entry.second); });
}

// Why a launch of newcomers cannot train with those; nothing: it can.
std::optional<std::string> WhyApart(const Launch& launch,
                                    const std::vector<Candidate>& others) {
  for (const auto& [rank, newcomer] : launch.by_rank) {
    for (const Candidate& other : others) {
      if (auto reason = WhyApart(other, newcomer)) return reason;
      if (auto reason = WhyNeitherDials(other, newcomer)) return reason;
    }
  }
  return std::nullopt;
}

}  // namespace

// A trainer of the newest generation, running or over, that its agent names
// anew.
void Group::Rejoin(const Agent& agent, const TrainerJoined& joined,
                   Context& c) {
  const protocol::Trainer& trainer = joined.trainer;
  if (ended_ && joined.generation == 0 && elastic()) {
    // Its agent never heard of the generation: it waits for the next one.
    Enlist(agent, joined, c);
    return;
  }
  if (seats_.Confirm(trainer.attach_id)) {
    roster_[trainer.attach_id] = {trainer, agent.name, agent.site,
                                  agent.data_address, joined.proven};
  }
  if (ended_ && joined.generation == 0) {
    // Its agent never heard of the generation, and it can have no other one.
    c.effects.sends.push_back(
        {agent.stream,
         JoinRefused{
             id_, trainer.rank, trainer.attach_id,
             absl::StrCat("generation ", generation_->number,
                          " ended before it began here: ", end_reason_)}});
  } else if (ended_) {
    c.effects.sends.push_back(
        {agent.stream, EndGeneration{id_, generation_->number, end_reason_}});
  } else if (joined.generation == 0) {
    c.effects.sends.push_back({agent.stream, StartGeneration{*generation_}});
  }
}

// Complete with those of it that train already, and none of its ranks twice.
bool Group::IsReady(const Launch& launch) const {
  const auto detached = detached_.find(launch.name);
  size_t seated = detached == detached_.end() ? 0 : detached->second.size();
  for (const auto& [id, candidate] : roster_) {
    if (candidate.trainer.launch != launch.name) continue;
    if (launch.by_rank.contains(candidate.trainer.rank)) return false;
    ++seated;
  }
  return launch.by_rank.size() + seated >= launch.world_size();
}

// Newcomers end the running generation; all meet in the next one.
void Group::TryAdmit(Context& c) {
  if (roster_.empty()) return;
  std::vector<Candidate> seated;
  for (const auto& [id, candidate] : roster_) seated.push_back(candidate);
  for (const Launch& launch : membership_.launches()) {
    if (!IsReady(launch)) continue;
    const std::string name = launch.name;
    if (const auto apart = WhyApart(launch, seated)) {
      Refuse(membership_.Refuse(name, *apart, c.now), c);
    } else if (seats_.FirstUnseen(c.agents) != nullptr &&
               !PT_WEAKENED(NewcomerEndsTheUnseen)) {
      // It may commit steps all the time, and would be left behind.
      continue;
    } else {
      End(absl::StrCat("launch '", name, "' joins with ", launch.by_rank.size(),
                       " ranks"),
          c);
    }
    return;  // The list of launches has changed.
  }
}

Remains Group::MakeRemains(const Context& c) const {
  Remains remains;
  remains.generation = generation_->number;
  remains.lineage = generation_->lineage.id;
  remains.on_shrink = generation_->on_shrink;
  remains.ranks = seats_.size();
  remains.detached = seats_.Detached().size();
  // A straggler may be the only one with the state that the generation began
  // with: the others were still to take it.
  const auto newest =
      NewestReturned(membership_.launches(), generation_->lineage.id);
  const bool lacks = newest && newest->first < generation_->lineage.committed &&
                     !PT_WEAKENED(StragglersNeverAwaited);
  remains.alive = seats_.CountAlive(c.agents, lacks);
  remains.unknown = seats_.CountUnknown(
      c.agents, ended_at_, c.options.regroup_timeout, c.now, lacks);
  if (const Seats::Seat* seat = seats_.FirstUnseen(c.agents);
      seat != nullptr && seat->silent_since) {
    remains.unseen = absl::StrCat(SeatText(*seat), " is out of sight since ",
                                  c.TimeText(*seat->silent_since));
  }
  remains.detached_of = detached_;
  remains.needed = remains.ranks - remains.detached;
  if (needed_before_ && progress_.committed_count() == 0) {
    // Newcomers that never trained need nobody in their place.
    const auto& needs = generation_->needs_state;
    size_t needed = *needed_before_;
    for (uint32_t rank : seats_.Detached()) {
      const bool had_state =
          std::find(needs.begin(), needs.end(), rank) == needs.end();
      if (had_state && needed > 0) --needed;
    }
    remains.needed = needed;
  }
  return remains;
}

// Where all of a launch have left nothing of it is waited for: who comes under
// its name again is another launch.
void Group::NoteDetached(const protocol::Trainer& trainer) {
  std::set<uint32_t>& ranks = detached_[trainer.launch];
  ranks.insert(trainer.rank);
  if (ranks.size() >= trainer.world_size) detached_.erase(trainer.launch);
}

// A restarted coordinator would wait for those who left.
void Group::RecordDetached(Context& c) {
  if (c.read_only || !elastic() || PT_WEAKENED(DetachedNotJournaled)) return;
  const TrainersDetached now = {id_, generation_->number, seats_.Detached(),
                                detached_};
  if (now.ranks == recorded_.ranks && now.of_launch == recorded_.of_launch) {
    return;
  }
  recorded_ = now;
  c.effects.records.push_back(now);
}

void Group::TryRegroup(Context& c) {
  std::vector<Candidate> returned;
  for (const Candidate* candidate : AllOf(membership_.launches())) {
    if (HasState(*candidate)) returned.push_back(*candidate);
  }
  for (const Launch& launch : membership_.launches()) {
    if (AnyOld(launch)) continue;
    if (const auto apart = WhyApart(launch, returned)) {
      Refuse(membership_.Refuse(launch.name, *apart, c.now), c);
      break;  // The list of launches has changed; the next one at the next
              // tick.
    }
  }
  if (!IsAwaited(MakeRemains(c))) {
    if (!SettleClaims(membership_.launches(), generation_->lineage.id, c))
      return;
    KeepOut(unreached_.Settle(), c);
    Part(c);
  }
  const NextLineup next =
      MakeNextLineup(membership_.launches(), MakeRemains(c));
  if (next.lineup) Form(*next.lineup, c);
}

void Group::NoteConnected(bool anew) {
  if (!anew && progress_.committed_count() == 0) return;
  connected_.clear();
  if (anew) return;
  for (const protocol::Member& member : generation_->members) {
    connected_.insert(member.agent);
  }
}

// Whether it has been in the job before its newest generation.
bool Group::WasBefore(const std::string& agent) const {
  return connected_.contains(agent) ||
         std::any_of(roster_.begin(), roster_.end(), [&](const auto& entry) {
           return entry.second.agent == agent && HasState(entry.second);
         });
}

void Group::NoteUnreached(const Agent& agent, const protocol::TrainerLeft& left,
                          Context& c) {
  // In the first generation of a job nobody disturbs anybody.
  if (!elastic() || !generation_->donor) return;
  KeepOut(unreached_.Note(
              agent.name, left.unreached, left.reason,
              [this](const std::string& name) { return WasBefore(name); }),
          c);
}

void Group::KeepOut(const std::vector<Unreached::Blame>& blamed, Context& c) {
  for (const Unreached::Blame& blame : blamed) KeepOut(blame, c);
}

// All newcomers of the launches that this agent has newcomers of: a launch
// comes as a whole.
void Group::KeepOut(const Unreached::Blame& blame, Context& c) {
  const std::string& agent = blame.agent;
  std::set<std::string> launches, old_launches;
  std::string data_address;
  for (const auto& [id, candidate] : roster_) {
    const bool is_new = !HasState(candidate);
    if (!is_new) old_launches.insert(candidate.trainer.launch);
    if (!is_new || candidate.agent != agent) continue;
    launches.insert(candidate.trainer.launch);
    data_address = candidate.data_address;
  }
  if (launches.empty()) return;
  const std::string reason = absl::StrCat(
      blame.why, ", so launches with a newcomer at agent '", agent,
      "' are kept out of this job for ",
      absl::FormatDuration(c.options.refusal_time),
      ": of any two agents one must be able to dial the other; see `pactrain "
      "doctor` at both ends");
  c.effects.Warn(absl::StrCat("job ", id_.ToString(), ": ", reason));
  membership_.RefuseAgent(agent, data_address, reason, c.now);
  for (const std::string& launch : launches) {
    for (const auto& [id, candidate] : roster_) {
      // Of a launch that trains, one that was left behind is like a newcomer.
      if (candidate.trainer.launch == launch && !HasState(candidate) &&
          !(old_launches.contains(launch) && WasBefore(candidate.agent))) {
        seats_.Return(id, c.now, Seats::State::kKeptOut);
      }
    }
    Refuse(membership_.RefuseNewcomers(launch, reason, c.now), c);
  }
}

void Group::Part(Context& c) {
  std::map<AgentPair, std::string> cut;
  for (const auto& [pair, why] : unreached_.members()) {
    const auto before = apart_.find(pair);
    const int times = before == apart_.end() ? 1 : before->second + 1;
    if (progress_.committed_count() == 0 && times >= kMaxApart) cut[pair] = why;
  }
  if (cut.empty() || PT_WEAKENED(NobodyParts)) return;
  std::map<std::string, Weight> agents;
  for (const Candidate* candidate : AllOf(membership_.launches())) {
    if (!HasState(*candidate)) continue;
    Weight& weight = agents[candidate->agent];
    weight.reached = std::max(weight.reached, ReachedBy(*candidate));
    ++weight.ranks;
  }
  for (const auto& [agent, pair] : SmallerSides(cut, agents)) {
    const std::string reason = absl::StrCat(
        "agents '", pair.first, "' and '", pair.second,
        "' did not reach each other in ", kMaxApart,
        " generations one after the other (", cut.at(pair), "), and agent '",
        agent, "' is on the smaller side, which is out of the job for ",
        absl::FormatDuration(c.options.refusal_time),
        ": see `pactrain doctor` at both ends");
    std::vector<Membership::Refusal> refusals;
    for (const Candidate& candidate : membership_.DropAgent(agent)) {
      refusals.push_back({candidate, reason});
      seats_.Return(candidate.trainer.attach_id, c.now, Seats::State::kKeptOut);
      membership_.RefuseAgent(agent, candidate.data_address, reason, c.now);
    }
    Refuse(refusals, c);
  }
}

// Empty: what is said of groups whose ranks stay holds.
std::string Group::RegroupReason(const Context& c) const {
  if (running()) {
    if (membership_.Complete() == nullptr) return "";
    const Seats::Seat* unseen = seats_.FirstUnseen(c.agents);
    return absl::StrCat(
        "generation ", generation_->number, " runs; joining it",
        unseen == nullptr
            ? ""
            : absl::StrCat(" when ", SeatText(*unseen), " is in sight again",
                           unseen->silent_since
                               ? absl::StrCat(", which it has not been since ",
                                              c.TimeText(*unseen->silent_since))
                               : "",
                           ": it may be training"));
  }
  if (const Seats::Seat* member = FirstMember(c);
      member != nullptr && NewestLeft(c)) {
    return absl::StrCat("the newest state is with ranks that left in order; ",
                        HoldsReason(*member, c));
  }
  if (!NewestReturned(membership_.launches(), generation_->lineage.id)) {
    const Launch* launch = membership_.Complete();
    if (launch == nullptr) return "";
    if (seats_.CountAlive(c.agents) == 0) {
      const Seats::Seat* seat = Holds(*launch, c);
      return seat == nullptr ? "" : HoldsReason(*seat, c);
    }
    return absl::StrCat(
        "generation ", generation_->number,
        " is over; joining its ranks, which come with their next step");
  }
  const Remains remains = MakeRemains(c);
  if (!IsAwaited(remains)) {
    const auto dispute =
        FirstDispute(membership_.launches(), generation_->lineage.id);
    if (dispute && dispute->is_open) return dispute->text;
  }
  return MakeNextLineup(membership_.launches(), remains).waiting;
}

}  // namespace pactrain::coordinator
