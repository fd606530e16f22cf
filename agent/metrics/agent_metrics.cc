#include "agent/metrics/agent_metrics.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/metrics/certificate_metrics.h"
#include "base/metrics/metrics_page.h"
#include "base/version.h"

namespace pactrain::agent {
namespace {

using base::MetricFamily;
using base::MetricType;
using Page = base::MetricsPage;

using Values = std::vector<std::string>;

Values GroupLabels(Values more = {}) {
  more.insert(more.begin(), {"training_job", "model"});
  return more;
}

Values ValuesOf(const GroupStatus& group, Values more = {}) {
  more.insert(more.begin(), {group.group.job, absl::StrCat(group.group.model)});
  return more;
}

void AddProcess(const MetricsSnapshot& now, Page& page) {
  page.Start("build_info", MetricType::Gauge, "1, with the agent's identity.",
             {"version", "agent", "site"});
  page.Add({base::kVersion, now.agent, now.site}, 1);
  page.Start("coordinator_connected", MetricType::Gauge,
             "1 while there is a stream to the coordinator.");
  page.Add({}, now.coordinator_connected ? 1.0 : 0.0);
  page.Start("insecure_network", MetricType::Gauge,
             "1 if --insecure-network allows plain text beyond loopback.");
  page.Add({}, now.insecure_network ? 1.0 : 0.0);
  page.Start("groups", MetricType::Gauge,
             "Attached models that trainers here belong or belonged to.");
  page.Add({}, static_cast<uint64_t>(now.groups.size()));
}

void AddMemory(const MetricsSnapshot& now, Page& page) {
  page.Start("full_reserve_bytes", MetricType::Gauge,
             "What FULL steps of all trainers here need of memory.");
  page.Add({}, now.full_reserve_bytes);
  page.Start("available_memory_bytes", MetricType::Gauge,
             "What machine and cgroups can still give; none where the system "
             "does not tell.");
  if (now.available_memory_bytes) page.Add({}, *now.available_memory_bytes);
}

void AddPeers(const MetricsSnapshot& now, Page& page) {
  page.Start("peer_bytes_total", MetricType::Counter,
             "Data plane bytes by peer site, headers included. scope: intra "
             "within the own site, inter to others.",
             {"peer_site", "scope", "direction"});
  for (const auto& peer : now.peers) {
    const char* scope = peer.is_own_site ? "intra" : "inter";
    page.Add({peer.site, scope, "sent"}, peer.sent_bytes);
    page.Add({peer.site, scope, "received"}, peer.received_bytes);
  }
  page.Start("peer_busy_seconds_total", MetricType::Counter,
             "Time in which bytes were on their way and not acknowledged yet, "
             "by peer site, of all connections together. scope: as of bytes.",
             {"peer_site", "scope"});
  for (const auto& peer : now.peers) {
    page.Add({peer.site, peer.is_own_site ? "intra" : "inter"},
             absl::ToDoubleSeconds(peer.busy));
  }
  const auto add = [&](const char* name, const char* help, auto value) {
    page.Start(name, MetricType::Gauge, help, {"peer_site"});
    for (const auto& peer : now.peers) page.Add({peer.site}, value(peer));
  };
  using Peer = MetricsSnapshot::Peer;
  add("peer_rtt_seconds",
      "Smoothed round trip of a ping by peer site; 0: not measured.",
      [](const Peer& peer) { return absl::ToDoubleSeconds(peer.rtt); });
  add("peer_goodput_bytes_per_second",
      "Acknowledged bytes per second in which some were on their way, by peer "
      "site; 0: not measured.",
      [](const Peer& peer) { return peer.goodput_bytes_per_second; });
  add("peer_bbr_connections",
      "Connections by peer site that use bbr, for the packets that they lose.",
      [](const Peer& peer) { return peer.bbr_connections; });
}

void AddRefused(const MetricsSnapshot& now, Page& page) {
  page.Start("connections_refused_total", MetricType::Counter,
             "Data connections that were refused, by reason.", {"reason"});
  for (const base::Refusal refusal : base::kRefusals) {
    if (refusal == base::Refusal::kBudget) continue;  // The coordinator's.
    page.Add({std::string(base::RefusalName(refusal))},
             now.refused.of(refusal));
  }
  page.Start("socket_refused_total", MetricType::Counter,
             "Connections to the trainers' socket that were refused, or gave "
             "way.");
  page.Add({}, now.socket_refused);
}

// Each family of the groups: its value for one group.
struct GroupFamily {
  const char* name;
  MetricType type;
  const char* help;
  uint64_t (*value)(const GroupStatus&);
};

constexpr GroupFamily kGroupFamilies[] = {
    {"trainers", MetricType::Gauge, "Trainers attached here.",
     [](const GroupStatus& g) { return static_cast<uint64_t>(g.trainers); }},
    {"generation", MetricType::Gauge, "Number of the generation; 0: none runs.",
     [](const GroupStatus& g) { return g.generation; }},
    {"next_step", MetricType::Gauge, "The step that comes next.",
     [](const GroupStatus& g) { return g.next_step; }},
    {"steps_committed_total", MetricType::Counter, "Steps committed.",
     [](const GroupStatus& g) { return g.committed_count; }},
    {"steps_refused_total", MetricType::Counter,
     "Steps that were not applied while the generation lived on.",
     [](const GroupStatus& g) { return g.refused_steps; }},
    {"steps_dense_total", MetricType::Counter,
     "Steps committed as DENSE although the decision said otherwise.",
     [](const GroupStatus& g) { return g.dense_steps; }},
    {"generations_ended_total", MetricType::Counter,
     "Generations that an error ended.",
     [](const GroupStatus& g) { return g.ended_generations; }},
    {"decision_version", MetricType::Gauge, "Version of the decision in force.",
     [](const GroupStatus& g) { return g.decision.version; }},
};

constexpr const char* kPhaseNames[kPhases] = {"compute", "wait", "sum", "link",
                                              "vote"};

void AddGroups(const MetricsSnapshot& now, Page& page) {
  for (const GroupFamily& family : kGroupFamilies) {
    page.Start(family.name, family.type, family.help, GroupLabels());
    for (const GroupStatus& group : now.groups) {
      page.Add(ValuesOf(group), family.value(group));
    }
  }
  page.Start("attempts_failed_total", MetricType::Counter,
             "Failed attempts of steps by cause.", GroupLabels({"cause"}));
  for (const GroupStatus& group : now.groups) {
    for (size_t cause = 1; cause < protocol::kCauses; ++cause) {
      const absl::string_view name =
          protocol::CauseName(static_cast<protocol::Cause>(cause));
      page.Add(ValuesOf(group, {std::string(name)}),
               group.failed_attempts[cause]);
    }
  }
  page.Start("group_bytes_total", MetricType::Counter,
             "Bytes of data frames to and from other sites.",
             GroupLabels({"direction"}));
  for (const GroupStatus& group : now.groups) {
    page.Add(ValuesOf(group, {"sent"}), group.sent_bytes);
    page.Add(ValuesOf(group, {"received"}), group.received_bytes);
  }
  page.Start("phase_seconds", MetricType::Histogram,
             "Steps of gradients by phase, from commit to commit. compute: to "
             "the last submit of this node's trainers; from there to the last "
             "result wait: for the first bytes of the last agent that sends "
             "here, sum: adding up and encoding, link: the rest; vote: to the "
             "commit.",
             GroupLabels({"phase"}));
  for (const GroupStatus& group : now.groups) {
    for (size_t phase = 0; phase < kPhases; ++phase) {
      page.Add(ValuesOf(group, {kPhaseNames[phase]}), group.phases[phase]);
    }
  }
}

// The node reduce: sums by NCCL among the trainers of this node.
void AddNccl(const MetricsSnapshot& now, Page& page) {
  const auto add = [&](const char* name, MetricType type, const char* help,
                       auto value) {
    page.Start(name, type, help, GroupLabels());
    for (const GroupStatus& group : now.groups) {
      page.Add(ValuesOf(group), value(group));
    }
  };
  add("nccl_ready", MetricType::Gauge,
      "1 while this node's trainers sum buckets by NCCL; else gradients go by "
      "the host.",
      [](const GroupStatus& g) { return g.nccl_ready ? 1.0 : 0.0; });
  add("nccl_buckets_total", MetricType::Counter, "Buckets summed by NCCL.",
      [](const GroupStatus& g) { return g.nccl.taken_buckets; });
  add("nccl_staged_seconds_total", MetricType::Counter,
      "From the first trainer that holds a bucket to the last one.",
      [](const GroupStatus& g) {
        return absl::ToDoubleSeconds(g.nccl.staged_to_go);
      });
  add("nccl_seconds_total", MetricType::Counter,
      "From there until all trainers have a bucket's sum.",
      [](const GroupStatus& g) {
        return absl::ToDoubleSeconds(g.nccl.go_to_taken);
      });
  page.Start("nccl_fallbacks_total", MetricType::Counter,
             "Gradients that went by the host although NCCL was asked for. "
             "bucket: one bucket; any other reason: the generation from there "
             "on.",
             GroupLabels({"reason"}));
  for (const GroupStatus& group : now.groups) {
    for (size_t f = 0; f < kFallbacks; ++f) {
      page.Add(ValuesOf(group, {FallbackName(static_cast<Fallback>(f))}),
               group.nccl.fallbacks[f]);
    }
  }
}

Page PageOf(const MetricsSnapshot& now) {
  Page page("pactrain_agent_");
  AddProcess(now, page);
  AddMemory(now, page);
  AddPeers(now, page);
  AddRefused(now, page);
  base::AddCertificates(now.certificates, absl::Now(), page);
  AddGroups(now, page);
  AddNccl(now, page);
  return page;
}

}  // namespace

std::string AgentMetrics::Table() { return PageOf({}).Table(); }

void AgentMetrics::Publish(MetricsSnapshot snapshot) {
  auto next = std::make_shared<const MetricsSnapshot>(std::move(snapshot));
  base::MutexLock lock(&mutex_);
  snapshot_ = std::move(next);
}

std::vector<MetricFamily> AgentMetrics::Collect() const {
  std::shared_ptr<const MetricsSnapshot> now;
  {
    base::MutexLock lock(&mutex_);
    now = snapshot_;
  }
  return PageOf(*now).Take();
}

}  // namespace pactrain::agent
