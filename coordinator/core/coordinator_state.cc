#include "coordinator/core/coordinator_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/releases.h"
#include "base/status_macros.h"
#include "base/weakened.h"
#include "coordinator/core/planner.h"

namespace pactrain::coordinator {
absl::string_view GroupPhaseName(GroupPhase phase) {
  switch (phase) {
    case GroupPhase::kWaiting:
      return "waiting";
    case GroupPhase::kRunning:
      return "running";
    case GroupPhase::kEnded:
      return "ended";
    case GroupPhase::kFailed:
      return "failed";
  }
  return "unknown";
}

CoordinatorState::CoordinatorState(const Options& options,
                                   const Identity& identity, absl::Duration now)
    : options_(options), identity_(identity), agents_(options, now) {}

absl::StatusOr<CoordinatorState> CoordinatorState::Create(
    const Options& options, const Identity& identity,
    const Recovered& recovered, absl::Duration now) {
  RETURN_IF_ERROR(options.Check());
  if (identity.term == 0 || identity.cluster_id.empty()) {
    return absl::InvalidArgumentError(
        "identity: term must be at least 1 and cluster_id not empty");
  }
  CoordinatorState state(options, identity, now);
  for (const auto& [id, group] : recovered.groups) {
    state.groups_.emplace(id, Group(id, options, group, now));
  }
  state.denied_ = recovered.denied;
  state.drained_ = recovered.drained;
  return state;
}

Group::Context CoordinatorState::MakeContext(absl::Duration now,
                                             Effects& effects) const {
  return {options_, agents_, identity_.term,  read_only(),
          now,      effects, identity_.epoch, identity_.first_generation};
}

Effects CoordinatorState::OnMessage(StreamId stream,
                                    const protocol::AgentMessage& message,
                                    absl::Duration now) {
  Effects effects;
  if (const auto* hello = std::get_if<protocol::AgentHello>(&message)) {
    OnHello(stream, *hello, now, effects);
    return Told(std::move(effects), now);
  }
  const Agent* agent = agents_.Hear(stream, now);
  if (agent == nullptr) {
    effects.closes.push_back(
        {stream, absl::FailedPreconditionError(
                     "the first message of a stream must be Hello")});
    return effects;
  }
  Group::Context c = MakeContext(now, effects);
  if (const auto* local = std::get_if<protocol::LocalTrainers>(&message)) {
    OnLocalTrainers(*agent, *local, c);
  } else if (const auto* answer =
                 std::get_if<protocol::PrepareAnswer>(&message)) {
    if (Group* group = FindGroup(answer->group))
      group->OnAnswer(*agent, *answer, c);
  } else if (const auto* report = std::get_if<protocol::StepReport>(&message)) {
    if (Group* group = FindGroup(report->group))
      group->OnReport(*agent, *report, c);
  }
  return Told(std::move(effects), now);
}

absl::Status CoordinatorState::CheckHello(
    const protocol::AgentHello& hello) const {
  if (!hello.cluster_id.empty() && hello.cluster_id != identity_.cluster_id) {
    return absl::FailedPreconditionError(absl::StrCat(
        "agent '", hello.agent, "' belongs to cluster ", hello.cluster_id,
        ", this coordinator is of cluster ", identity_.cluster_id,
        ": point the agent at its own coordinator, or restart it to join this "
        "one"));
  }
  if (base::CompareReleases(hello.version, identity_.version) ==
      base::Releases::kFarApart) {
    return absl::FailedPreconditionError(
        absl::StrCat("agent '", hello.agent, "' is of release ", hello.version,
                     ", this coordinator of release ", identity_.version, ": ",
                     base::FarApartText(hello.version, identity_.version)));
  }
  if (!options_.links.empty() && !IsLinked(hello.site, options_.links)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "agent '", hello.agent, "' is in site '", hello.site,
        "', which none of the coordinator's links names (",
        LinksText(options_.links),
        "): add a link to it, or give the agent one of these sites"));
  }
  return absl::OkStatus();
}

absl::Status CoordinatorState::CheckHistory(const protocol::AgentHello& hello,
                                            absl::Duration now,
                                            Effects& effects) {
  if (!stale_.empty()) return absl::FailedPreconditionError(stale_);
  const History::Place place = identity_.history.Find(hello.history);
  if (place == History::Place::kHeld || PT_WEAKENED(OldHistoryAccepted)) {
    return absl::OkStatus();
  }
  const std::string told =
      absl::StrCat("agent '", hello.agent,
                   "' was told by a coordinator of this cluster what is not in "
                   "this one's state directory");
  if (place == History::Place::kGone) {
    effects.Warn(absl::StrCat(told, ": the backup that was restored is older"));
    return absl::OkStatus();
  }
  if (place == History::Place::kOther) {
    return absl::FailedPreconditionError(absl::StrCat(
        told,
        ": they are two copies, and each went its own way. If this one "
        "is the right one, restart the agent; else stop this coordinator and "
        "start it on the right one"));
  }
  stale_ = absl::StrCat(
      "THE STATE DIRECTORY IS AN OLDER COPY: ", told,
      " (was a backup restored?). Nothing is formed or decided any more, and "
      "what trains trains on. Stop this coordinator and start it on the newest "
      "state directory. If that is lost, make one of the newest backup with "
      "`pactrain-coordinator --restore FILE`, and start on that: ranks that "
      "live go on from their newest state. If this is the newest, start it and "
      "that agent again");
  for (const auto& [name, agent] : agents_.all()) {
    if (agent.connected()) {
      effects.closes.push_back(
          {agent.stream, absl::FailedPreconditionError(stale_)});
    }
  }
  for (const Effects::Close& close : effects.closes) {
    Drop(close.stream, now, effects);
  }
  return absl::FailedPreconditionError(stale_);
}

Effects CoordinatorState::Told(Effects effects, absl::Duration now) {
  NoteRefused(effects, now);
  if (effects.records.empty()) return effects;
  identity_.history.Wrote();
  std::vector<Effects::Send> sends;
  for (const auto& [name, agent] : agents_.all()) {
    if (agent.connected()) {
      sends.push_back({agent.stream, identity_.history.mark()});
    }
  }
  // A Welcome is the first message of its stream.
  const auto after = std::find_if(
      effects.sends.begin(), effects.sends.end(), [](const auto& send) {
        return !std::holds_alternative<protocol::Welcome>(send.message);
      });
  effects.sends.insert(after, sends.begin(), sends.end());
  return effects;
}

void CoordinatorState::NoteRelease(const protocol::AgentHello& hello,
                                   Effects& effects) const {
  if (identity_.version.empty() || hello.version == identity_.version) return;
  effects.Warn(
      absl::StrCat("agent '", hello.agent, "' is of release ", hello.version,
                   ", this coordinator of release ", identity_.version, ": ",
                   base::BesideText(hello.version, identity_.version)));
}

void CoordinatorState::OnHello(StreamId stream,
                               const protocol::AgentHello& hello,
                               absl::Duration now, Effects& effects) {
  const Agent* const before = agents_.Find(hello.agent);
  const bool is_news =
      before == nullptr || before->incarnation != hello.incarnation;
  absl::Status status = CheckHello(hello);
  if (status.ok()) status = CheckHistory(hello, now, effects);
  if (status.ok()) {
    const auto replaced = agents_.Admit(stream, hello, now);
    if (replaced.ok() && *replaced != 0) {
      effects.closes.push_back(
          {*replaced, absl::AbortedError("the agent opened a newer stream")});
    }
    status = replaced.status();
  }
  if (!status.ok()) {
    effects.Warn(std::string(status.message()));
    if (agents_.Hear(stream, now) != nullptr) Drop(stream, now, effects);
    effects.closes.push_back({stream, std::move(status)});
    return;
  }
  protocol::Welcome welcome = {identity_.cluster_id, identity_.term,
                               options_.heartbeat_interval,
                               identity_.history.mark()};
  welcome.version = identity_.version;
  effects.sends.push_back({stream, std::move(welcome)});
  effects.Log(absl::StrCat("agent '", hello.agent, "' of site '", hello.site,
                           "' at ", hello.data_address, " connected"));
  if (is_news) NoteRelease(hello, effects);
  Group::Context c = MakeContext(now, effects);
  const Agent& agent = *agents_.Find(hello.agent);
  EndDrainOfEarlier(agent, effects);
  for (auto& [id, group] : groups_) group.OnAgentConnected(agent, c);
}

void CoordinatorState::OnLocalTrainers(const Agent& agent,
                                       const protocol::LocalTrainers& local,
                                       Group::Context& c) {
  ForgetRefused(agent.stream, local);
  std::string why = WhyDrained(agent);
  Group* group = FindGroup(local.group);
  const auto was_refused = [&](const protocol::TrainerJoined& joined) {
    return WasRefused(agent.stream, local, joined, c.now);
  };
  const bool any =
      !std::all_of(local.here.begin(), local.here.end(), was_refused);
  if (group == nullptr && why.empty() && any) {
    const absl::Status room = MakeRoom(local.group, agent.name, c);
    if (room.ok()) {
      group = &groups_.emplace(local.group, Group(local.group, options_, c.now))
                   .first->second;
    } else {
      why = std::string(room.message());
      c.effects.Warn(why);
    }
  }
  for (const protocol::TrainerJoined& joined : local.here) {
    if (why.empty() || (group != nullptr && joined.generation != 0)) continue;
    if (was_refused(joined)) continue;
    c.effects.sends.push_back(
        {agent.stream, protocol::JoinRefused{local.group, joined.trainer.rank,
                                             joined.trainer.attach_id, why}});
  }
  if (group != nullptr) {
    const auto takes = [&](const protocol::TrainerJoined& joined) {
      return joined.generation != 0 || (why.empty() && !was_refused(joined));
    };
    group->OnLocalTrainers(agent, local, takes, c);
  }
}

void CoordinatorState::Drop(StreamId stream, absl::Duration now,
                            Effects& effects) {
  const Agent* agent = agents_.Disconnect(stream, now);
  if (agent == nullptr) return;
  for (auto& [id, group] : groups_) group.OnAgentDisconnected(*agent, now);
}

Effects CoordinatorState::OnStreamClosed(StreamId stream,
                                         const std::string& reason,
                                         absl::Duration now) {
  Effects effects;
  if (const Agent* agent = agents_.Hear(stream, now)) {
    effects.Warn(
        absl::StrCat("agent '", agent->name, "' lost its stream: ", reason));
    Drop(stream, now, effects);
  }
  return Told(std::move(effects), now);
}

Effects CoordinatorState::Tick(absl::Duration now) {
  Effects effects;
  for (StreamId stream : agents_.Silent(now)) {
    absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        "no heartbeat for ", absl::FormatDuration(options_.agent_timeout)));
    // Not Hear(): the agent was silent.
    effects.Warn(absl::StrCat("closing a silent stream: ", status.message()));
    Drop(stream, now, effects);
    effects.closes.push_back({stream, std::move(status)});
  }
  agents_.ForgetGone(options_.gone_after, now);
  std::erase_if(refused_, [&](const auto& entry) {
    return now - entry.second >= kRefusalOnItsWay;
  });
  Group::Context c = MakeContext(now, effects);
  std::set<std::string> expired;
  for (const auto& [id, group] : groups_) {
    if (!group.ever_formed() && now - group.since() >= kMaxWait) {
      expired.insert(id.job);
    }
  }
  for (const std::string& job : expired) {
    TurnAway(job,
             absl::StrCat("it was not formed within ",
                          absl::FormatDuration(kMaxWait),
                          "; start all of its "
                          "ranks, and attach again"),
             c);
  }
  for (auto it = groups_.begin(); it != groups_.end();) {
    it->second.Tick(c);
    // Trainers that waited and left leave nothing behind.
    it = !it->second.ever_formed() && it->second.idle(c) ? groups_.erase(it)
                                                         : ++it;
  }
  return Told(std::move(effects), now);
}

Group* CoordinatorState::FindGroup(const protocol::GroupId& id) {
  auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : &it->second;
}

absl::Status CoordinatorState::CheckWritable() const {
  if (!stale_.empty()) return absl::FailedPreconditionError(stale_);
  if (!read_only_) return absl::OkStatus();
  return absl::UnavailableError(
      "the coordinator's journal cannot be written; see its log");
}

absl::StatusOr<Effects> CoordinatorState::SetPin(const protocol::GroupId& id,
                                                 const std::optional<Pin>& pin,
                                                 absl::Duration now) {
  if (pin) RETURN_IF_ERROR(CheckPin(*pin));
  Group* group = FindGroup(id);
  if (group == nullptr || !group->ever_formed()) {
    return absl::NotFoundError(absl::StrCat(
        "job '", id.ToString(),
        "' is not known or has not started yet; pactrain-admin jobs lists "
        "them; a job can be pinned once it has started"));
  }
  if (pin && !group->pinned()) RETURN_IF_ERROR(CheckPinned());
  RETURN_IF_ERROR(CheckWritable());
  Effects effects;
  Group::Context c = MakeContext(now, effects);
  group->SetPin(pin, c);
  return Told(std::move(effects), now);
}

absl::StatusOr<Effects> CoordinatorState::Forget(const std::string& job,
                                                 const std::string& by,
                                                 absl::Duration now) {
  Effects effects;
  Group::Context c = MakeContext(now, effects);
  std::vector<Group*> groups;
  for (auto& [id, group] : groups_) {
    if (id.job != job || !group.ever_formed()) continue;
    RETURN_IF_ERROR(group.CheckForget(c));
    groups.push_back(&group);
  }
  if (groups.empty()) {
    return absl::NotFoundError(
        absl::StrCat("job '", job,
                     "' is not known or has not started yet; pactrain-admin "
                     "jobs lists them"));
  }
  RETURN_IF_ERROR(CheckWritable());
  for (Group* group : groups) group->Forget(by, c);
  return Told(std::move(effects), now);
}

StateSnapshot CoordinatorState::Snapshot(absl::Duration now) const {
  StateSnapshot snapshot;
  snapshot.cluster_id = identity_.cluster_id;
  snapshot.term = identity_.term;
  snapshot.read_only = read_only();
  snapshot.risk_bound = options_.risk_bound;
  for (const auto& [name, agent] : agents_.all()) {
    snapshot.agents.push_back({name, agent.site, agent.connected(),
                               agent.data_address, agent.version,
                               agent.metrics_address, WhyDrained(agent)});
  }
  Effects unused;
  const Group::Context c = MakeContext(now, unused);
  for (const auto& [id, group] : groups_)
    snapshot.groups.push_back(group.Snapshot(c));
  return snapshot;
}

}  // namespace pactrain::coordinator
