#include "coordinator/metrics/coordinator_metrics.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/metrics/certificate_metrics.h"
#include "base/metrics/metrics_page.h"
#include "base/metrics/rpc_page.h"
#include "base/version.h"

namespace pactrain::coordinator {
namespace {

using base::MetricFamily;
using base::MetricType;
using Page = base::MetricsPage;

using Values = std::vector<std::string>;

Values GroupLabels(Values more = {}) {
  more.insert(more.begin(), {"training_job", "model"});
  return more;
}

Values ValuesOf(const GroupSnapshot& group, Values more = {}) {
  more.insert(more.begin(), {group.group.job, absl::StrCat(group.group.model)});
  return more;
}

constexpr GroupPhase kPhases[] = {GroupPhase::kWaiting, GroupPhase::kRunning,
                                  GroupPhase::kEnded, GroupPhase::kFailed};

void AddProcess(const StateSnapshot& now, bool insecure_network, Page& page) {
  page.Start("build_info", MetricType::Gauge,
             "1, with the version and the cluster.", {"version", "cluster_id"});
  page.Add({base::kVersion, now.cluster_id}, 1);
  page.Start("term", MetricType::Gauge,
             "Term of this run; grows at every start.");
  page.Add({}, static_cast<double>(now.term));
  page.Start("read_only", MetricType::Gauge,
             "1 while the journal cannot be written, or is an older copy.");
  page.Add({}, now.read_only ? 1 : 0);
  page.Start(
      "audit_contradicted", MetricType::Gauge,
      "Agents that were told of lines which the audit log does not have, and "
      "1 more if it had been changed when the coordinator started.");
  page.Add({}, static_cast<double>(now.audit_contradicted));
  page.Start("insecure_network", MetricType::Gauge,
             "1 if --insecure-network allows plain text beyond loopback.");
  page.Add({}, insecure_network ? 1 : 0);
  page.Start("risk_bound", MetricType::Gauge,
             "What --risk allows a decision to cost by r.");
  page.Add({}, now.risk_bound);
  double connected = 0;
  for (const AgentSnapshot& agent : now.agents) connected += agent.connected;
  page.Start("agents", MetricType::Gauge,
             "Agents known, by state of their stream.", {"state"});
  page.Add({"connected"}, connected);
  page.Add({"disconnected"},
           static_cast<double>(now.agents.size()) - connected);
  page.Start("jobs", MetricType::Gauge, "Attached models of jobs, by state.",
             {"state"});
  for (const GroupPhase phase : kPhases) {
    const auto count =
        std::count_if(now.groups.begin(), now.groups.end(),
                      [&](const auto& g) { return g.phase == phase; });
    page.Add({std::string(GroupPhaseName(phase))}, static_cast<double>(count));
  }
}

void AddConnections(const Connections& now, Page& page) {
  page.Start("connections", MetricType::Gauge,
             "Connections of agents and operators.");
  page.Add({}, static_cast<double>(now.open));
  page.Start("connections_refused_total", MetricType::Counter,
             "Connections that were refused, by reason.", {"reason"});
  for (const base::Refusal refusal : base::kRefusals) {
    if (refusal == base::Refusal::kKey) continue;  // The agents'.
    page.Add({std::string(base::RefusalName(refusal))},
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
    {"counted_since_seconds", MetricType::Gauge,
     "When the coordinator first heard of it after its start, as Unix time: "
     "what counts since the coordinator's start counts from then on.",
     [](const GroupSnapshot& g) {
       return absl::ToDoubleSeconds(g.counted_since - absl::UnixEpoch());
     }},
    {"norm_alarms_total", MetricType::Counter,
     "Measured norms of gradients far above their median, since the "
     "coordinator's start.",
     [](const GroupSnapshot& g) {
       return static_cast<double>(g.norm_alarms_total);
     }},
    {"step_seconds", MetricType::Gauge,
     "Mean time from a step's first submit to its commit, as last reported.",
     [](const GroupSnapshot& g) { return g.step_seconds; }},
    {"missing_agents", MetricType::Gauge,
     "Agents of the newest generation that have no stream now; if it ended, "
     "and not in order, those whose trainers did not leave.",
     [](const GroupSnapshot& g) {
       return static_cast<double>(g.lost_agents.size());
     }},
    {"step_stalled", MetricType::Gauge,
     "1 while the open step has waited 10 s or longer for a trainer that lives "
     "and does not submit; pactrain-admin job names it.",
     [](const GroupSnapshot& g) { return g.waits_for.empty() ? 0.0 : 1.0; }},
    {"full_step_at_least_seconds", MetricType::Gauge,
     "What a step in FULL would take now at least, with computing and links "
     "as they are; 0: not known, as no FULL step was measured within an hour "
     "of steps.",
     [](const GroupSnapshot& g) { return g.account.full_at_least_seconds; }},
    {"mask_changes_total", MetricType::Counter,
     "Mask sets that all ranks agreed on after another one, since the "
     "coordinator's start.",
     [](const GroupSnapshot& g) {
       return static_cast<double>(g.account.mask_changes);
     }},
    {"saved_bytes", MetricType::Gauge,
     "What FULL had sent between sites in fp32, less what was sent, since the "
     "coordinator's start.",
     [](const GroupSnapshot& g) {
       return g.account.dense_bytes - g.account.sent_bytes;
     }},
    {"mask_unchanged_steps", MetricType::Gauge,
     "Steps since all ranks agreed on the masks that they agree on now; 0: "
     "none.",
     [](const GroupSnapshot& g) {
       return static_cast<double>(g.account.mask_unchanged_steps);
     }},
    {"saved_seconds", MetricType::Gauge,
     "Time saved against FULL since the coordinator's start, of the agent with "
     "the most; below 0: lost. Of the slowest link, FULL's bytes over its best "
     "measured rate, less what goes on behind computing, less the same of what "
     "was sent; no more than the steps waited less than the fastest of the "
     "newest FULL steps. Before a FULL one was measured in the generation, "
     "what links' rates are sure of without round trips.",
     [](const GroupSnapshot& g) { return g.account.saved_seconds; }},
};

// A series for each group that knows `value`.
template <typename Value>
void AddKnown(const StateSnapshot& now, const char* name, const char* help,
              Value GroupSnapshot::*value, Page& page) {
  page.Start(name, MetricType::Gauge, help, GroupLabels());
  for (const GroupSnapshot& group : now.groups) {
    if (group.*value) page.Add(ValuesOf(group), *(group.*value));
  }
}

void AddStates(const StateSnapshot& now, Page& page) {
  page.Start("job_state", MetricType::Gauge, "1 for the state that it is in.",
             GroupLabels({"state"}));
  for (const GroupSnapshot& group : now.groups) {
    for (const GroupPhase phase : kPhases) {
      page.Add(ValuesOf(group, {std::string(GroupPhaseName(phase))}),
               group.phase == phase ? 1 : 0);
    }
  }
  page.Start(
      "mode", MetricType::Gauge,
      "1 for the mode in force; all 0: no generation runs, or agents have "
      "not told yet.",
      GroupLabels({"mode"}));
  for (const GroupSnapshot& group : now.groups) {
    for (const protocol::Mode mode : kModes) {
      page.Add(ValuesOf(group, {std::string(protocol::ModeName(mode))}),
               group.in_force && group.in_force->mode == mode ? 1 : 0);
    }
  }
  page.Start(
      "codec", MetricType::Gauge,
      "1 for the codec in force; all 0: no generation runs, or agents have "
      "not told yet.",
      GroupLabels({"codec"}));
  for (const GroupSnapshot& group : now.groups) {
    for (int i = 1; i <= static_cast<int>(protocol::kLastCodec); ++i) {
      const auto codec = static_cast<protocol::Codec>(i);
      page.Add(ValuesOf(group, {std::string(protocol::CodecName(codec))}),
               group.in_force && group.in_force->codec == codec ? 1 : 0);
    }
  }
}

void AddVotes(const StateSnapshot& now, Page& page) {
  page.Start("mask_votes", MetricType::Gauge,
             "Trainers by their newest vote for masks. for: for the set that "
             "most want; settling: the same, too new to count; against: for "
             "another or none; missing: no vote yet.",
             GroupLabels({"vote"}));
  for (const GroupSnapshot& group : now.groups) {
    page.Add(ValuesOf(group, {"for"}), group.votes.in_favour);
    page.Add(ValuesOf(group, {"settling"}), group.votes.settling);
    page.Add(ValuesOf(group, {"against"}), group.votes.against);
    page.Add(ValuesOf(group, {"missing"}), group.votes.missing);
  }
}

void AddAccount(const StateSnapshot& now, Page& page) {
  const auto by_mode =
      [&](const char* name, MetricType type, const char* help,
          std::array<double, kModes.size()> AccountSnapshot::*values) {
        page.Start(name, type, help, GroupLabels({"mode"}));
        for (const GroupSnapshot& group : now.groups) {
          for (size_t i = 0; i < kModes.size(); ++i) {
            page.Add(
                ValuesOf(group, {std::string(protocol::ModeName(kModes[i]))}),
                (group.account.*values)[i]);
          }
        }
      };
  by_mode("mode_seconds_total", MetricType::Counter,
          "Time in each mode since the coordinator's start.",
          &AccountSnapshot::mode_seconds);
  by_mode("step_interval_seconds", MetricType::Gauge,
          "Time from commit to commit as last measured in each mode; 0: not "
          "measured.",
          &AccountSnapshot::mode_interval_seconds);
  by_mode(
      "predicted_step_seconds", MetricType::Gauge,
      "What a step is to take in FULL and in the mode in force: computing, "
      "and its bytes over the slowest link's best measured rate, less what "
      "goes on behind computing; 0: not known. What it waits for other than "
      "links is not in it.",
      &AccountSnapshot::mode_predicted_seconds);
  page.Start("bytes_total", MetricType::Counter,
             "Sent between sites since the coordinator's start. dense: all "
             "elements in fp32, as FULL has them; kept: those that were sent, "
             "in fp32; wire: as they were sent, headers included.",
             GroupLabels({"stage"}));
  for (const GroupSnapshot& group : now.groups) {
    page.Add(ValuesOf(group, {"dense"}), group.account.dense_bytes);
    page.Add(ValuesOf(group, {"kept"}), group.account.kept_bytes);
    page.Add(ValuesOf(group, {"wire"}), group.account.sent_bytes);
  }
  page.Start("fallbacks_total", MetricType::Counter,
             "Switches to a mode that sends more within a generation, since "
             "the coordinator's start. masks: they leave out what is wanted "
             "now, or there are none; risk: r is above its bound, or not "
             "known; pin: somebody pinned it, or let it go.",
             GroupLabels({"from", "to", "cause"}));
  for (const GroupSnapshot& group : now.groups) {
    for (size_t i = 0; i < kFallbacks.size(); ++i) {
      page.Add(ValuesOf(group,
                        {std::string(protocol::ModeName(kFallbacks[i].from)),
                         std::string(protocol::ModeName(kFallbacks[i].to)),
                         std::string(FallbackCauseName(kFallbacks[i].cause))}),
               group.account.fallbacks[i]);
    }
  }
}

void AddFailed(const StateSnapshot& now, Page& page) {
  page.Start("attempts_failed_total", MetricType::Counter,
             "Failed attempts of steps by cause, since the coordinator's "
             "start. not told: by an older agent.",
             GroupLabels({"cause"}));
  for (const GroupSnapshot& group : now.groups) {
    for (size_t i = 0; i < protocol::kCauses; ++i) {
      const auto cause = static_cast<protocol::Cause>(i);
      const bool told = cause != protocol::Cause::kNone;
      page.Add(ValuesOf(group, {std::string(told ? protocol::CauseName(cause)
                                                 : "not told")}),
               group.failed_by_cause_total[i]);
    }
  }
}

void AddGroups(const StateSnapshot& now, Page& page) {
  for (const GroupFamily& family : kGroupFamilies) {
    page.Start(family.name, family.type, family.help, GroupLabels());
    for (const GroupSnapshot& group : now.groups) {
      page.Add(ValuesOf(group), family.value(group));
    }
  }
  AddKnown(now, "risk",
           "Share of the effective batch that quantising costs (r), by the "
           "decision in force; none: not measured.",
           &GroupSnapshot::risk, page);
  AddKnown(now, "risk_clip",
           "The part of r that clipping makes; it is biased, all else averages "
           "out.",
           &GroupSnapshot::risk_clip, page);
  AddKnown(now, "exchange_share",
           "Of the time of a step, what trainers wait for the exchange; none: "
           "not measured.",
           &GroupSnapshot::exchange_share, page);
  AddStates(now, page);
  AddVotes(now, page);
  AddAccount(now, page);
  AddFailed(now, page);
}

// All agents of a site together.
struct Link {
  double goodput = 0, rtt = 0;
};
using SitePair = std::pair<std::string, std::string>;

struct Links {
  std::map<SitePair, Link> shown;
  std::set<SitePair> hidden;  // More than may be shown.
};

Links LinksOf(const GroupSnapshot& group) {
  Links links;
  for (const LinkSnapshot& measured : group.links) {
    const SitePair pair = {measured.site, measured.peer_site};
    if (!links.shown.contains(pair) &&
        links.shown.size() >= CoordinatorMetrics::kMaxLinks) {
      links.hidden.insert(pair);
      continue;
    }
    Link& link = links.shown[pair];
    link.goodput += measured.goodput_bytes_per_second;
    link.rtt = std::max(link.rtt, measured.rtt_seconds);
  }
  return links;
}

void AddLinks(const StateSnapshot& now, Page& page) {
  std::vector<Links> links;
  for (const GroupSnapshot& group : now.groups) {
    links.push_back(LinksOf(group));
  }
  const auto add = [&](const char* name, const char* help,
                       double Link::*value) {
    page.Start(name, MetricType::Gauge, help,
               GroupLabels({"site", "peer_site"}));
    for (size_t i = 0; i < links.size(); ++i) {
      for (const auto& [pair, link] : links[i].shown) {
        page.Add(ValuesOf(now.groups[i], {pair.first, pair.second}),
                 link.*value);
      }
    }
  };
  add("link_goodput_bytes_per_second",
      "Send rate between two sites while busy; 0: not measured.",
      &Link::goodput);
  add("link_rtt_seconds",
      "Slowest round trip between two sites; 0: not measured.", &Link::rtt);
  page.Start("links_hidden", MetricType::Gauge,
             "Pairs of sites that are left out here, since there are more than "
             "64.",
             GroupLabels());
  for (size_t i = 0; i < links.size(); ++i) {
    page.Add(ValuesOf(now.groups[i]), links[i].hidden.size());
  }
}

// Leaves out those that ended before the newest kMaxEnded of that phase.
void CutEnded(GroupPhase phase, std::vector<GroupSnapshot>& groups) {
  const auto key = [](const GroupSnapshot& group) {
    return std::pair(group.ended_seconds.value_or(0), group.group);
  };
  std::vector<std::pair<double, protocol::GroupId>> ended;
  for (const GroupSnapshot& group : groups) {
    if (group.phase == phase) ended.push_back(key(group));
  }
  if (ended.size() <= CoordinatorMetrics::kMaxEnded) return;
  const auto first_out = ended.begin() + CoordinatorMetrics::kMaxEnded;
  std::nth_element(ended.begin(), first_out, ended.end());
  std::erase_if(groups, [&](const GroupSnapshot& group) {
    return group.phase == phase && key(group) >= *first_out;
  });
}

Page PageOf(StateSnapshot now, const Connections& connections,
            const base::RpcCounts& calls, bool insecure_network) {
  Page page("pactrain_coordinator_");
  AddProcess(now, insecure_network, page);
  AddConnections(connections, page);
  base::AddCertificates(connections.certificates, absl::Now(), page);
  CutEnded(GroupPhase::kEnded, now.groups);
  CutEnded(GroupPhase::kFailed, now.groups);
  AddGroups(now, page);
  AddLinks(now, page);
  page.Append(base::RpcPage(calls));
  return page;
}

}  // namespace

std::vector<MetricFamily> CoordinatorMetrics::Collect() const {
  return PageOf(snapshot_(), connections_(), calls_(), insecure_network_)
      .Take();
}

std::string CoordinatorMetrics::Table() {
  return PageOf({}, {}, {}, false).Table();
}

}  // namespace pactrain::coordinator
