// An agent is out of jobs: by the policy, or by an operator.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/grants.h"

namespace pactrain::coordinator {
namespace {

// For an error: the keys of a map, as many as it holds.
template <typename Value>
std::string NamesOf(const std::map<std::string, Value>& map) {
  std::string names;
  for (const auto& [name, value] : map) {
    if (names.size() > 1000) break;
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  return names.empty() ? "nobody" : names;
}

}  // namespace

std::set<std::pair<std::string, std::string>> Group::Participants() const {
  std::set<std::pair<std::string, std::string>> all = seats_.AgentsOfLiving();
  if (running()) {
    for (const protocol::Member& member : generation_->members) {
      all.insert({member.agent, member.site});
    }
  }
  for (const Candidate* candidate : AllOf(membership_.launches())) {
    all.insert({candidate->agent, candidate->site});
  }
  return all;
}

// The step that it had voted for last stays unknown: its word is not asked.
void Group::Expel(const std::string& agent, const std::string& reason,
                  Context& c) {
  std::erase_if(first_words_,
                [&](const auto& entry) { return entry.second.agent == agent; });
  testimony_.Forget(agent);
  bool was_member = false, waited = false;
  std::vector<Membership::Refusal> refusals;
  for (const Candidate& candidate : membership_.DropAgent(agent)) {
    refusals.push_back({candidate, reason});
    waited |=
        seats_.Return(candidate.trainer.attach_id, c.now, Seats::State::kLeft);
  }
  Refuse(refusals, c);
  if (!generation_) return;
  for (const protocol::Member& member : generation_->members) {
    if (member.agent != agent) continue;
    for (const protocol::Digest& attach_id : member.attach_ids) {
      was_member |= seats_.Leave(attach_id, Seats::State::kLeft);
      roster_.erase(attach_id);
    }
  }
  if (was_member && running()) {
    End(absl::StrCat("agent '", agent, "' is out: ", reason), c);
  } else if (was_member || waited) {
    TryForm(c);
  }
}

Group::Share Group::ShareOf(const std::string& agent) const {
  Share share;
  if (!running()) return share;
  for (const protocol::Member& member : generation_->members) {
    if (member.agent == agent) share.trainers = member.ranks.size();
  }
  share.ends = share.trainers > 0 &&
               (!elastic() || share.trainers == generation_->world_size);
  return share;
}

void Group::Drain(const Agent& agent, const std::string& reason, Context& c) {
  std::vector<Membership::Refusal> refusals;
  for (const Candidate& candidate : membership_.DropAgent(agent.name)) {
    refusals.push_back({candidate, reason});
    seats_.Return(candidate.trainer.attach_id, c.now, Seats::State::kKeptOut);
  }
  Refuse(refusals, c);
  if (ShareOf(agent.name).trainers == 0) return;
  for (const protocol::Member& member : generation_->members) {
    if (member.agent != agent.name) continue;
    for (const protocol::Digest& attach_id : member.attach_ids) {
      seats_.Leave(attach_id, Seats::State::kKeptOut);
      const auto it = roster_.find(attach_id);
      if (it == roster_.end()) continue;
      NoteDetached(it->second.trainer);
      roster_.erase(it);
    }
  }
  End(reason, c);
}

void CoordinatorState::ExpelFrom(const std::string& name,
                                 const std::optional<std::string>& job,
                                 const std::string& reason, Group::Context& c) {
  for (auto& [id, group] : groups_) {
    if (!job || id.job == *job) group.Expel(name, reason, c);
  }
  // With what waits there for a generation. Where it is let in it comes back.
  if (const Agent* agent = agents_.Find(name);
      agent != nullptr && agent->connected()) {
    c.effects.Warn(absl::StrCat("agent '", name, "': ", reason));
    const StreamId stream = agent->stream;
    Drop(stream, c.now, c.effects);
    c.effects.closes.push_back({stream, absl::AbortedError(reason)});
  }
}

std::vector<CoordinatorState::Participant> CoordinatorState::Participants()
    const {
  std::vector<Participant> all;
  for (const auto& [id, group] : groups_) {
    for (const auto& [agent, site] : group.Participants()) {
      all.push_back({id, agent, site});
    }
  }
  return all;
}

Effects CoordinatorState::Expel(const std::string& name,
                                const std::optional<std::string>& job,
                                const std::string& reason, absl::Duration now) {
  Effects effects;
  Group::Context c = MakeContext(now, effects);
  ExpelFrom(name, job, reason, c);
  return Told(std::move(effects), now);
}

absl::StatusOr<CoordinatorState::Evicted> CoordinatorState::Evict(
    const std::string& rule, const std::string& by, absl::Duration now) {
  RETURN_IF_ERROR(CheckDenial(rule));
  RETURN_IF_ERROR(CheckWritable());
  const std::string who = DenialText(rule);
  if (denied_.size() >= kMaxDenied && !denied_.contains(who)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kMaxDenied,
        " are evicted already; readmit some (pactrain-admin "
        "readmit WHO), write a pattern, such as agent/node-*, or use deny in "
        "the policy file"));
  }
  Evicted evicted;
  Group::Context c = MakeContext(now, evicted.effects);
  const IdentityDenied denied{who, by, c.TimeText(now)};
  denied_[who] = denied;
  evicted.effects.records.push_back(denied);
  std::set<std::string> names;
  for (const auto& [name, agent] : agents_.all()) names.insert(name);
  for (const auto& [id, group] : groups_) {
    names.merge(group.ClaimingAgents());
    const GroupSnapshot snapshot = group.Snapshot(c);
    if (!snapshot.generation) continue;
    for (const protocol::Member& member : snapshot.generation->members) {
      names.insert(member.agent);
    }
  }
  const std::string reason = absl::StrCat("evicted by ", by);
  for (const std::string& name : names) {
    const protocol::Identity agent = protocol::AgentCalled(name);
    evicted.known.insert(agent.Short());
    if (!MatchesDenial(who, {agent, "", "", ""})) continue;
    evicted.meant.insert(agent.Short());
    ExpelFrom(name, std::nullopt, reason, c);
  }
  evicted.effects = Told(std::move(evicted.effects), now);
  return evicted;
}

std::string CoordinatorState::WhyDrained(const Agent& agent) const {
  const auto it = drained_.find(agent.name);
  if (it == drained_.end() || it->second.incarnation != agent.incarnation) {
    return "";
  }
  return absl::StrCat("agent '", agent.name, "' was drained by ", it->second.by,
                      ", and takes no trainers until it is started again, or "
                      "undrained (pactrain-admin undrain ",
                      agent.name, ")");
}

void CoordinatorState::EndDrainOfEarlier(const Agent& agent, Effects& effects) {
  const auto it = drained_.find(agent.name);
  if (read_only() || it == drained_.end() ||
      it->second.incarnation == agent.incarnation) {
    return;
  }
  drained_.erase(it);
  effects.records.push_back(AgentUndrained{agent.name, "it was started again"});
}

absl::StatusOr<CoordinatorState::Drained> CoordinatorState::Drain(
    const std::string& name, const std::string& by, bool force,
    absl::Duration now) {
  const Agent* const agent = agents_.Find(name);
  if (agent == nullptr || !agent->connected()) {
    return absl::NotFoundError(
        absl::StrCat("agent '", name,
                     "' is not connected; pactrain-admin agents lists them"));
  }
  RETURN_IF_ERROR(CheckWritable());
  Drained drained;
  std::string ends;
  for (const auto& [id, group] : groups_) {
    const Group::Share share = group.ShareOf(name);
    if (share.trainers == 0) continue;
    drained.jobs.push_back(id.ToString());
    if (share.ends) {
      absl::StrAppend(&ends, ends.empty() ? "" : ", ", id.ToString());
    }
  }
  if (!ends.empty() && !force) {
    return absl::FailedPreconditionError(absl::StrCat(
        "draining agent '", name, "' would end ", ends,
        ", whose other ranks cannot go on without its: wait for that, or say "
        "--force"));
  }
  if (drained_.size() >= kMaxDenied && !drained_.contains(name)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kMaxDenied,
        " agents are drained already: start some again, or undrain some that "
        "are gone (pactrain-admin undrain ",
        drained_.begin()->first, ")"));
  }
  const AgentDrained done{name, agent->incarnation, by, force};
  drained_[name] = done;
  drained.effects.records.push_back(done);
  Group::Context c = MakeContext(now, drained.effects);
  const std::string why = WhyDrained(*agent);
  for (auto& [id, group] : groups_) group.Drain(*agent, why, c);
  drained.effects = Told(std::move(drained.effects), now);
  return drained;
}

absl::StatusOr<Effects> CoordinatorState::Undrain(const std::string& name) {
  RETURN_IF_ERROR(CheckWritable());
  if (drained_.erase(name) == 0) {
    return absl::NotFoundError(absl::StrCat(
        "agent '", name, "' is not drained; drained are: ", NamesOf(drained_)));
  }
  Effects effects;
  effects.records.push_back(AgentUndrained{name, "by an operator"});
  return Told(std::move(effects), absl::ZeroDuration());
}

absl::StatusOr<Effects> CoordinatorState::Readmit(const std::string& who) {
  RETURN_IF_ERROR(CheckWritable());
  // An older coordinator kept it as it was written.
  const auto it =
      std::find_if(denied_.begin(), denied_.end(), [&](const auto& denied) {
        return DenialText(denied.first) == DenialText(who);
      });
  if (it == denied_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "'", who, "' is not evicted; evicted are: ", NamesOf(denied_)));
  }
  Effects effects;
  effects.records.push_back(IdentityReadmitted{it->first});
  denied_.erase(it);
  return Told(std::move(effects), absl::ZeroDuration());
}

}  // namespace pactrain::coordinator
