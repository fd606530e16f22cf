#include "coordinator/core/agents.h"

#include "absl/strings/str_cat.h"

namespace pactrain::coordinator {
namespace {

// Agents without a stream are kept for a while; this
// bounds the table whatever connects and leaves between two ticks.
constexpr size_t kKnownPerConnected = 4;

}  // namespace

absl::StatusOr<StreamId> Agents::Admit(StreamId stream,
                                       const protocol::AgentHello& hello,
                                       absl::Duration now) {
  if (by_stream_.contains(stream)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "agent '", hello.agent, "' said Hello twice on one stream"));
  }
  StreamId replaced = 0;
  auto it = agents_.find(hello.agent);
  if (it != agents_.end()) {
    Agent& agent = it->second;
    const bool same = agent.incarnation == hello.incarnation;
    if (!same && agent.connected()) {
      return absl::AlreadyExistsError(absl::StrCat(
          "another live agent is named '", hello.agent, "' (site '", agent.site,
          "', ", agent.data_address,
          "): give every agent a name of its own, or stop that one"));
    }
    replaced = agent.stream;
    by_stream_.erase(agent.stream);
  } else if (by_stream_.size() >= static_cast<size_t>(options_.max_agents) ||
             agents_.size() >= kKnownPerConnected * options_.max_agents) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "agent '", hello.agent, "' would be one more than the ",
        options_.max_agents, " agents that this coordinator takes"));
  }
  agents_[hello.agent] = {
      hello.agent,   hello.incarnation,     hello.site, hello.data_address,
      hello.version, hello.metrics_address, stream,     now,
      now,           hello.proves};
  by_stream_[stream] = hello.agent;
  return replaced;
}

const Agent* Agents::Hear(StreamId stream, absl::Duration now) {
  auto it = by_stream_.find(stream);
  if (it == by_stream_.end()) return nullptr;
  Agent& agent = agents_.at(it->second);
  agent.last_heard = now;
  return &agent;
}

const Agent* Agents::Disconnect(StreamId stream, absl::Duration now) {
  auto it = by_stream_.find(stream);
  if (it == by_stream_.end()) return nullptr;
  Agent& agent = agents_.at(it->second);
  by_stream_.erase(it);
  agent.stream = 0;
  agent.changed_at = now;
  return &agent;
}

const Agent* Agents::Find(const std::string& name) const {
  auto it = agents_.find(name);
  return it == agents_.end() ? nullptr : &it->second;
}

std::vector<StreamId> Agents::Silent(absl::Duration now) const {
  std::vector<StreamId> silent;
  for (const auto& [stream, name] : by_stream_) {
    if (now - agents_.at(name).last_heard > options_.agent_timeout) {
      silent.push_back(stream);
    }
  }
  return silent;
}

bool Agents::IsGone(const std::string& name,
                    const protocol::Digest& incarnation,
                    absl::Duration how_long, absl::Duration now) const {
  const Agent* agent = Find(name);
  if (agent == nullptr) return now - start_ >= how_long;
  if (agent->incarnation != incarnation) return true;
  return !agent->connected() && now - agent->changed_at >= how_long;
}

void Agents::ForgetGone(absl::Duration how_long, absl::Duration now) {
  std::erase_if(agents_, [&](const auto& entry) {
    const Agent& agent = entry.second;
    return !agent.connected() && now - agent.changed_at >= how_long;
  });
}

}  // namespace pactrain::coordinator
