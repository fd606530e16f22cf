// Which jobs have a place at the coordinator, and whose gives way; how many
// trainers want one.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/core/coordinator_state.h"
#include "protocol/identity.h"
#include "protocol/limits.h"
#include "protocol/local_trainers.h"

namespace pactrain::coordinator {
namespace {

// A job that has a place.
struct LiveJob {
  std::set<std::string> agents;
  bool formed = false;   // One of its models was.
  absl::Duration since;  // Of the first model.
};

// Of one agent: the jobs that are its alone.
struct Share {
  int jobs = 0;
  int waiting = 0;     // That have never been formed;
  std::string newest;  // which of these came last.
};

// With whom the agent is counted: alone, or with all names that the key of one
// job makes, as it makes any number.
std::string OwnerOf(const std::string& agent) {
  const std::string job = protocol::AgentCalled(agent).job;
  return job.empty() ? agent : absl::StrCat("*..", job);
}

// An idle group that may give way.
struct Giver {
  // Of its owners the one that has fewest, so that a shared job is as safe as
  // the safest. Without any it was never formed, and is nobody's loss.
  size_t held = std::numeric_limits<size_t>::max();
  size_t owner = 0;
  bool is_own = false;  // The newcomer's.
  absl::Duration ended_at;

  // Who holds most gives way; of as many the newcomer, which else would take
  // another's part; of one's own the oldest.
  bool GivesWayAfter(const Giver& other) const {
    return std::tuple(held, is_own, other.ended_at) <
           std::tuple(other.held, other.is_own, ended_at);
  }
};

std::map<std::string, LiveJob> LiveJobs(
    const std::map<protocol::GroupId, Group>& groups, const Group::Context& c) {
  std::map<std::string, LiveJob> live;
  for (const auto& [id, group] : groups) {
    if (group.idle(c)) continue;
    const auto [it, is_new] = live.try_emplace(id.job);
    LiveJob& job = it->second;
    job.since = is_new ? group.since() : std::min(job.since, group.since());
    job.formed |= group.ever_formed();
    job.agents.merge(group.AgentNames());
  }
  return live;
}

}  // namespace

std::set<std::string> Group::AgentNames() const {
  std::set<std::string> names = membership_.AgentNames();
  if (!running()) return names;
  for (const protocol::Member& member : generation_->members)
    names.insert(member.agent);
  return names;
}

void Group::NoteOwners() {
  std::set<size_t> owners;
  for (const protocol::Member& member : generation_->members) {
    owners.insert(absl::HashOf(OwnerOf(member.agent)));
  }
  owners_.assign(owners.begin(), owners.end());
}

std::string Group::OwnerText(size_t owner) const {
  for (const protocol::Member& member : generation_->members) {
    std::string text = OwnerOf(member.agent);
    if (absl::HashOf(text) == owner) return text;
  }
  return "";
}

void Group::TurnAway(const std::string& reason, Context& c) {
  while (!membership_.empty()) {
    Refuse(
        membership_.Refuse(membership_.launches().front().name, reason, c.now),
        c);
  }
}

bool Group::IsNew(const Agent& agent, const protocol::LocalTrainers& local,
                  const protocol::TrainerJoined& joined) const {
  const protocol::Digest& id = joined.trainer.attach_id;
  if (joined.generation != 0 || !SpeaksFor(agent, id)) return false;
  // Who leaves and joins at once does so each time.
  if (protocol::FindLeft(local, id) != nullptr) return true;
  if (const Candidate* waiting = membership_.Find(id)) {
    return !(waiting->trainer == joined.trainer);
  }
  return !running() || seats_.Find(id) == nullptr;
}

size_t CoordinatorState::CountNew(const std::string& name,
                                  const protocol::LocalTrainers& local,
                                  absl::Duration now) const {
  const Agent* agent = agents_.Find(name);
  if (agent == nullptr) return 0;  // Its stream is closed for that.
  const auto group = groups_.find(local.group);
  return static_cast<size_t>(
      std::count_if(local.here.begin(), local.here.end(), [&](const auto& it) {
        if (WasRefused(agent->stream, local, it, now)) return false;
        return group == groups_.end() ? it.generation == 0
                                      : group->second.IsNew(*agent, local, it);
      }));
}

bool CoordinatorState::WasRefused(StreamId stream,
                                  const protocol::LocalTrainers& local,
                                  const protocol::TrainerJoined& joined,
                                  absl::Duration now) const {
  const protocol::Digest& id = joined.trainer.attach_id;
  if (joined.generation != 0 || protocol::FindLeft(local, id) != nullptr) {
    return false;
  }
  const auto it = refused_.find({stream, local.group, id});
  return it != refused_.end() && now - it->second < kRefusalOnItsWay;
}

void CoordinatorState::NoteRefused(const Effects& effects, absl::Duration now) {
  for (const Effects::Send& send : effects.sends) {
    if (const auto* no = std::get_if<protocol::JoinRefused>(&send.message)) {
      refused_[{send.stream, no->group, no->attach_id}] = now;
    }
  }
}

void CoordinatorState::ForgetRefused(StreamId stream,
                                     const protocol::LocalTrainers& local) {
  const auto first =
      refused_.lower_bound({stream, local.group, protocol::Digest{}});
  for (auto it = first; it != refused_.end();) {
    const auto& [of, group, id] = it->first;
    if (of != stream || group != local.group) return;
    it = protocol::FindHere(local, id) == nullptr ? refused_.erase(it)
                                                  : std::next(it);
  }
}

absl::Status CoordinatorState::MakeRoomForJob(const std::string& job,
                                              const std::string& agent,
                                              Group::Context& c) {
  const std::map<std::string, LiveJob> live = LiveJobs(groups_, c);
  if (live.contains(job)) return absl::OkStatus();
  std::map<std::string, Share> shares;
  for (const auto& [name, of] : live) {
    if (of.agents.size() != 1) continue;
    Share& share = shares[*of.agents.begin()];
    ++share.jobs;
    if (of.formed) continue;
    ++share.waiting;
    if (share.newest.empty() || of.since >= live.at(share.newest).since) {
      share.newest = name;
    }
  }
  const Share own = shares[agent];
  if (own.jobs >= kMaxJobsOfAgent) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job '", job, "' would be one more than the ", kMaxJobsOfAgent,
        " jobs that one agent may hold alone, and '", agent,
        "' does; end one of them"));
  }
  if (live.size() < static_cast<size_t>(protocol::kMaxJobs)) {
    return absl::OkStatus();
  }
  const auto most = std::max_element(
      shares.begin(), shares.end(), [](const auto& a, const auto& b) {
        return a.second.waiting < b.second.waiting;
      });
  // One that changed places with the newcomer would be no fairer.
  if (most == shares.end() || most->second.waiting <= own.waiting + 1) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job '", job, "' would be one more than the ", protocol::kMaxJobs,
        " jobs that this coordinator serves at once"));
  }
  TurnAway(most->second.newest,
           absl::StrCat("its job gives way to one of agent '", agent, "': all ",
                        protocol::kMaxJobs,
                        " places are taken, and "
                        "agent '",
                        most->first, "' alone holds ", most->second.waiting,
                        " that wait for other ranks"),
           c);
  return absl::OkStatus();
}

void CoordinatorState::TurnAway(const std::string& job,
                                const std::string& reason, Group::Context& c) {
  c.effects.Warn(absl::StrCat("job '", job, "': ", reason));
  for (auto it = groups_.begin(); it != groups_.end();) {
    auto& [id, group] = *it;
    if (id.job != job || group.ever_formed()) {
      ++it;
      continue;
    }
    group.TurnAway(reason, c);
    it = groups_.erase(it);
  }
}

absl::Status CoordinatorState::MakeRoom(const protocol::GroupId& id,
                                        const std::string& agent,
                                        Group::Context& c) {
  RETURN_IF_ERROR(MakeRoomForJob(id.job, agent, c));
  if (groups_.size() < kMaxRemembered) return absl::OkStatus();
  using Place = std::map<protocol::GroupId, Group>::iterator;
  std::vector<Place> idle;
  absl::flat_hash_map<size_t, size_t> held;  // By owner.
  for (auto it = groups_.begin(); it != groups_.end(); ++it) {
    if (!it->second.idle(c)) continue;
    idle.push_back(it);
    for (const size_t owner : it->second.owners()) ++held[owner];
  }
  if (idle.size() < kMaxRemembered) return absl::OkStatus();
  const size_t own = absl::HashOf(OwnerOf(agent));
  std::optional<Giver> most;
  Place gives_way;
  for (const Place& place : idle) {
    const Group& group = place->second;
    if (group.pinned()) continue;
    Giver giver;
    giver.ended_at = group.ended_at();
    for (const size_t owner : group.owners()) {
      giver.is_own |= owner == own;
      if (const size_t count = held.at(owner); count < giver.held) {
        giver.held = count;
        giver.owner = owner;
      }
    }
    if (most && !most->GivesWayAfter(giver)) continue;
    most = giver;
    gives_way = place;
  }
  if (!most) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job '", id.ToString(), "' would be one more than the ", kMaxRemembered,
        " models of jobs that are remembered after their end, and an operator "
        "pinned all of those: unpin what is over with `pactrain-admin unpin "
        "JOB`"));
  }
  if (gives_way->second.ever_formed()) {
    if (c.read_only) {
      return absl::UnavailableError(
          "the coordinator's journal cannot be written; see its log");
    }
    c.effects.records.push_back(GroupForgotten{
        gives_way->first,
        absl::StrCat("for job '", id.ToString(), "' of agent '", agent,
                     "': agent '", gives_way->second.OwnerText(most->owner),
                     "' held ", most->held, " of the ", idle.size(),
                     " that are remembered")});
  }
  groups_.erase(gives_way);
  return absl::OkStatus();
}

absl::Status CoordinatorState::CheckPinned() const {
  const auto pinned =
      std::count_if(groups_.begin(), groups_.end(),
                    [](const auto& entry) { return entry.second.pinned(); });
  if (static_cast<size_t>(pinned) < kMaxPinned) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(pinned, " models of jobs are pinned, at most ", kMaxPinned,
                   " may be: unpin one first, with `pactrain-admin unpin "
                   "JOB`"));
}

}  // namespace pactrain::coordinator
