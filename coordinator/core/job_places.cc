// Which jobs have a place at the coordinator, and whose gives way.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/core/coordinator_state.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

constexpr size_t kMaxGroups =
    static_cast<size_t>(protocol::kMaxJobs) * protocol::kMaxModels;

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

void Group::TurnAway(const std::string& reason, Context& c) {
  while (!membership_.empty()) {
    Refuse(
        membership_.Refuse(membership_.launches().front().name, reason, c.now),
        c);
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
  auto oldest = groups_.end();
  for (auto it = groups_.begin(); it != groups_.end(); ++it) {
    if (it->second.idle(c) &&
        (oldest == groups_.end() ||
         it->second.ended_at() < oldest->second.ended_at())) {
      oldest = it;
    }
  }
  if (groups_.size() < kMaxGroups || oldest == groups_.end())
    return absl::OkStatus();
  if (c.read_only && oldest->second.ever_formed()) {
    return absl::UnavailableError(
        "the coordinator's journal cannot be written; see its log");
  }
  if (oldest->second.ever_formed()) {
    c.effects.records.push_back(GroupForgotten{oldest->first});
  }
  groups_.erase(oldest);
  return absl::OkStatus();
}

}  // namespace pactrain::coordinator
