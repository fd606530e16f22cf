#include "coordinator/metrics/coordinator_metrics.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/metrics/certificate_metrics.h"
#include "base/metrics/metrics_page.h"
#include "base/version.h"

namespace pactrain::coordinator {
namespace {

using base::MetricFamily;
using base::MetricType;
using Labels = base::MetricLabels;
using Page = base::MetricsPage;

Labels GroupLabels(const GroupSnapshot& group, Labels more = {}) {
  Labels labels = {{"job", group.group.job},
                   {"model", absl::StrCat(group.group.model)}};
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

void AddProcess(const StateSnapshot& now, bool insecure_network, Page& page) {
  page.Start("build_info", MetricType::Gauge,
             "1, with the version and the cluster.");
  page.Add({{"version", base::kVersion}, {"cluster_id", now.cluster_id}}, 1);
  page.Start("term", MetricType::Gauge,
             "Term of this run; grows at every start.");
  page.Add({}, static_cast<double>(now.term));
  page.Start("read_only", MetricType::Gauge,
             "1 while the journal cannot be written.");
  page.Add({}, now.read_only ? 1 : 0);
  page.Start("insecure_network", MetricType::Gauge,
             "1 if --insecure-network allows plain text beyond loopback.");
  page.Add({}, insecure_network ? 1 : 0);
  double connected = 0;
  for (const AgentSnapshot& agent : now.agents) connected += agent.connected;
  page.Start("agents", MetricType::Gauge,
             "Agents known, by state of their stream.");
  page.Add({{"state", "connected"}}, connected);
  page.Add({{"state", "disconnected"}},
           static_cast<double>(now.agents.size()) - connected);
  page.Start("jobs", MetricType::Gauge, "Attached models of jobs, by state.");
  for (GroupPhase phase :
       {GroupPhase::kWaiting, GroupPhase::kRunning, GroupPhase::kEnded}) {
    const auto count =
        std::count_if(now.groups.begin(), now.groups.end(),
                      [&](const auto& g) { return g.phase == phase; });
    page.Add({{"state", std::string(GroupPhaseName(phase))}},
             static_cast<double>(count));
  }
}

void AddConnections(const Connections& now, Page& page) {
  page.Start("connections", MetricType::Gauge,
             "Connections of agents and operators.");
  page.Add({}, static_cast<double>(now.open));
  page.Start("connections_refused_total", MetricType::Counter,
             "Connections that were refused, by reason.");
  for (const base::Refusal refusal : base::kRefusals) {
    page.Add({{"reason", std::string(base::RefusalName(refusal))}},
             static_cast<double>(now.refused.of(refusal)));
  }
}

struct GroupFamily {
  const char* name;
  MetricType type;
  const char* help;
  double (*value)(const GroupSnapshot&);
};

constexpr GroupFamily kGroupFamilies[] = {
    {"generation", MetricType::Gauge,
     "Number of the newest generation; 0: none yet.",
     [](const GroupSnapshot& g) {
       return g.generation ? static_cast<double>(g.generation->number) : 0.0;
     }},
    {"decision_version", MetricType::Gauge,
     "Version of the decision in force; 0: no generation runs.",
     [](const GroupSnapshot& g) {
       return g.in_force ? static_cast<double>(g.in_force->version) : 0.0;
     }},
    {"masks_keep_ratio", MetricType::Gauge,
     "Kept of all elements by the newest equal mask votes; 0: none.",
     [](const GroupSnapshot& g) {
       return g.elements == 0 ? 0.0
                              : static_cast<double>(g.kept_elements) /
                                    static_cast<double>(g.elements);
     }},
    {"steps_committed_total", MetricType::Counter,
     "Steps committed since the coordinator's start.",
     [](const GroupSnapshot& g) {
       return static_cast<double>(g.committed_total);
     }},
    {"attempts_failed_total", MetricType::Counter,
     "Failed attempts of steps since the coordinator's start.",
     [](const GroupSnapshot& g) {
       return static_cast<double>(g.failed_attempts_total);
     }},
    {"norm_alarms_total", MetricType::Counter,
     "Measured norms of gradients far above their median, since the "
     "coordinator's start.",
     [](const GroupSnapshot& g) {
       return static_cast<double>(g.norm_alarms_total);
     }},
    {"step_seconds", MetricType::Gauge, "Mean time of a step as last reported.",
     [](const GroupSnapshot& g) { return g.step_seconds; }},
};

void AddGroups(const StateSnapshot& now, Page& page) {
  for (const GroupFamily& family : kGroupFamilies) {
    page.Start(family.name, family.type, family.help);
    for (const GroupSnapshot& group : now.groups) {
      page.Add(GroupLabels(group), family.value(group));
    }
  }
  page.Start("risk", MetricType::Gauge,
             "Share of the effective batch that quantising costs (r), by the "
             "decision in force.");
  for (const GroupSnapshot& group : now.groups) {
    if (group.risk) page.Add(GroupLabels(group), *group.risk);
  }
  page.Start("risk_clip", MetricType::Gauge,
             "The part of r that clipping makes; it is biased.");
  for (const GroupSnapshot& group : now.groups) {
    if (group.risk_clip) page.Add(GroupLabels(group), *group.risk_clip);
  }
  page.Start("exchange_share", MetricType::Gauge,
             "Of the time of a step, what trainers wait for the exchange.");
  for (const GroupSnapshot& group : now.groups) {
    if (group.exchange_share) {
      page.Add(GroupLabels(group), *group.exchange_share);
    }
  }
  page.Start("decision", MetricType::Gauge,
             "1 for the mode and codec of the decision in force.");
  for (const GroupSnapshot& group : now.groups) {
    if (!group.in_force) continue;
    page.Add(
        GroupLabels(
            group,
            {{"mode", std::string(protocol::ModeName(group.in_force->mode))},
             {"codec",
              std::string(protocol::CodecName(group.in_force->codec))}}),
        1);
  }
}

// All agents of a site together.
struct Link {
  double goodput = 0, rtt = 0;
};
using SitePair = std::pair<std::string, std::string>;

std::map<SitePair, Link> LinksOf(const GroupSnapshot& group) {
  std::map<SitePair, Link> links;
  for (const LinkSnapshot& measured : group.links) {
    const SitePair pair = {measured.site, measured.peer_site};
    if (!links.contains(pair) && links.size() >= CoordinatorMetrics::kMaxLinks)
      continue;
    Link& link = links[pair];
    link.goodput += measured.goodput_bytes_per_second;
    link.rtt = std::max(link.rtt, measured.rtt_seconds);
  }
  return links;
}

void AddLinks(const StateSnapshot& now, Page& page) {
  const auto add = [&](const char* name, const char* help,
                       double Link::*value) {
    page.Start(name, MetricType::Gauge, help);
    for (const GroupSnapshot& group : now.groups) {
      for (const auto& [pair, link] : LinksOf(group)) {
        page.Add(GroupLabels(
                     group, {{"site", pair.first}, {"peer_site", pair.second}}),
                 link.*value);
      }
    }
  };
  add("link_goodput_bytes_per_second",
      "Send rate between two sites while busy; 0: not measured.",
      &Link::goodput);
  add("link_rtt_seconds",
      "Slowest round trip between two sites; 0: not measured.", &Link::rtt);
}

}  // namespace

std::vector<MetricFamily> CoordinatorMetrics::Collect() const {
  const StateSnapshot now = snapshot_();
  Page page("pactrain_coordinator_");
  AddProcess(now, insecure_network_, page);
  const Connections connections = connections_();
  AddConnections(connections, page);
  base::AddCertificates(connections.certificates, absl::Now(), page);
  AddGroups(now, page);
  AddLinks(now, page);
  return page.Take();
}

}  // namespace pactrain::coordinator
