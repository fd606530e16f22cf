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
using Labels = base::MetricLabels;
using Page = base::MetricsPage;

Labels GroupLabels(const GroupStatus& group, Labels more = {}) {
  Labels labels = {{"job", group.group.job},
                   {"model", absl::StrCat(group.group.model)}};
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

void AddProcess(const MetricsSnapshot& now, Page& page) {
  page.Start("build_info", MetricType::Gauge, "1, with the agent's identity.");
  page.Add(
      {{"version", base::kVersion}, {"agent", now.agent}, {"site", now.site}},
      1.0);
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
  if (!now.available_memory_bytes.has_value()) return;
  page.Start("available_memory_bytes", MetricType::Gauge,
             "What machine and cgroups can still give.");
  page.Add({}, *now.available_memory_bytes);
}

void AddPeers(const MetricsSnapshot& now, Page& page) {
  page.Start("peer_bytes_total", MetricType::Counter,
             "Data plane bytes by peer site, headers included.");
  for (const auto& peer : now.peers) {
    page.Add({{"site", peer.site}, {"direction", "sent"}}, peer.sent_bytes);
    page.Add({{"site", peer.site}, {"direction", "received"}},
             peer.received_bytes);
  }
  page.Start("peer_rtt_seconds", MetricType::Gauge,
             "Smoothed round trip of a ping by peer site; 0: not measured.");
  for (const auto& peer : now.peers) {
    page.Add({{"site", peer.site}}, absl::ToDoubleSeconds(peer.rtt));
  }
  page.Start("peer_goodput_bytes_per_second", MetricType::Gauge,
             "Send rate by peer site while busy; 0: not measured.");
  for (const auto& peer : now.peers) {
    page.Add({{"site", peer.site}}, peer.goodput_bytes_per_second);
  }
  page.Start("peer_bbr_connections", MetricType::Gauge,
             "Connections by peer site that use bbr, for the packets that they "
             "lose.");
  for (const auto& peer : now.peers) {
    page.Add({{"site", peer.site}}, peer.bbr_connections);
  }
}

void AddRefused(const MetricsSnapshot& now, Page& page) {
  page.Start("connections_refused_total", MetricType::Counter,
             "Data connections that were refused, by reason.");
  for (const base::Refusal refusal : base::kRefusals) {
    page.Add({{"reason", std::string(base::RefusalName(refusal))}},
             now.refused.of(refusal));
  }
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

void AddGroups(const MetricsSnapshot& now, Page& page) {
  for (const GroupFamily& family : kGroupFamilies) {
    page.Start(family.name, family.type, family.help);
    for (const GroupStatus& group : now.groups) {
      page.Add(GroupLabels(group), family.value(group));
    }
  }
  page.Start("attempts_failed_total", MetricType::Counter,
             "Failed attempts of steps by cause.");
  for (const GroupStatus& group : now.groups) {
    for (size_t cause = 1; cause < kCauses; ++cause) {
      const absl::string_view name =
          protocol::CauseName(static_cast<protocol::Cause>(cause));
      page.Add(GroupLabels(group, {{"cause", std::string(name)}}),
               group.failed_attempts[cause]);
    }
  }
  page.Start("group_bytes_total", MetricType::Counter,
             "Bytes of data frames to and from other sites.");
  for (const GroupStatus& group : now.groups) {
    page.Add(GroupLabels(group, {{"direction", "sent"}}), group.sent_bytes);
    page.Add(GroupLabels(group, {{"direction", "received"}}),
             group.received_bytes);
  }
  page.Start("decision", MetricType::Gauge,
             "1 for the mode and codec of the decision in force.");
  for (const GroupStatus& group : now.groups) {
    if (group.generation == 0) continue;  // None is in force.
    page.Add(
        GroupLabels(
            group,
            {{"mode", std::string(protocol::ModeName(group.decision.mode))},
             {"codec",
              std::string(protocol::CodecName(group.decision.codec))}}),
        1.0);
  }
}

}  // namespace

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
  Page page("pactrain_agent_");
  AddProcess(*now, page);
  AddMemory(*now, page);
  AddPeers(*now, page);
  AddRefused(*now, page);
  base::AddCertificates(now->certificates, absl::Now(), page);
  AddGroups(*now, page);
  return page.Take();
}

}  // namespace pactrain::agent
