#include "coordinator/page/conditions.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/version.h"

namespace pactrain::coordinator {
namespace {

using Findings = std::vector<Finding>;

std::string RateText(double rate) {
  return absl::StrFormat("%.3g Mbit/s", rate * 8e-6);
}

std::string NamesText(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  const size_t shown = std::min(kShown, names.size());
  std::string text = absl::StrJoin(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  if (names.size() > shown) {
    absl::StrAppend(&text, " and ", names.size() - shown, " more");
  }
  return text;
}

template <typename Function>
Findings OfJobs(const Facts& facts, Function text_of) {
  Findings findings;
  for (const GroupSnapshot& group : facts.snapshot.groups) {
    const std::string text = text_of(group);
    if (!text.empty()) {
      findings.push_back({group.group, group.group.ToString(), text});
    }
  }
  return findings;
}

uint32_t Grown(const Facts& facts, const GroupSnapshot& group,
               uint32_t JobTrack::Point::*counter, const AlertRule& rule) {
  const auto it = facts.jobs.find(group.group);
  return it == facts.jobs.end()
             ? 0
             : it->second.Grown(counter, rule.window_seconds, facts.now);
}

Findings MaskChurn(const Facts& facts, const AlertRule& rule) {
  return OfJobs(facts, [&](const GroupSnapshot& g) -> std::string {
    const uint32_t changes =
        Grown(facts, g, &JobTrack::Point::mask_changes, rule);
    if (changes <= rule.threshold) return "";
    return absl::StrCat("agreed on other masks ", changes,
                        " times within the hour");
  });
}

Findings Fallbacks(const Facts& facts, const AlertRule& rule) {
  return OfJobs(facts, [&](const GroupSnapshot& g) -> std::string {
    const uint32_t count = Grown(facts, g, &JobTrack::Point::fallbacks, rule);
    if (count <= rule.threshold) return "";
    return absl::StrCat("went back to a mode that sends more ", count,
                        " times within the hour");
  });
}

Findings NormAlarm(const Facts& facts, const AlertRule& rule) {
  return OfJobs(facts, [&](const GroupSnapshot& g) -> std::string {
    const uint32_t count = Grown(facts, g, &JobTrack::Point::norm_alarms, rule);
    if (count <= rule.threshold) return "";
    return absl::StrCat(count,
                        " gradients were far above their usual size; "
                        "pactrain-admin audit names the agent");
  });
}

Findings AgentLost(const Facts& facts, const AlertRule& rule) {
  return OfJobs(facts, [&](const GroupSnapshot& g) -> std::string {
    const auto count = static_cast<double>(g.lost_agents.size());
    if (count <= rule.threshold) return "";
    return absl::StrCat("no stream to the coordinator from ",
                        NamesText(g.lost_agents));
  });
}

Findings JobWaits(const Facts& facts, const AlertRule&) {
  return OfJobs(facts, [](const GroupSnapshot& g) {
    return g.phase == GroupPhase::kWaiting ? g.reason : "";
  });
}

Findings RiskAboveBound(const Facts& facts, const AlertRule&) {
  const double bound = facts.snapshot.risk_bound;
  return OfJobs(facts, [&](const GroupSnapshot& g) -> std::string {
    if (!g.risk || *g.risk <= bound) return "";
    return absl::StrFormat(
        "quantising costs r = %.3g of the batch, %g is "
        "allowed",
        *g.risk, bound);
  });
}

Findings SlowerThanFull(const Facts& facts, const AlertRule& rule) {
  return OfJobs(facts, [&](const GroupSnapshot& g) -> std::string {
    if (!g.in_force || g.in_force->mode == protocol::Mode::kFull) return "";
    const auto mode = std::find(kModes.begin(), kModes.end(), g.in_force->mode);
    const auto& seconds = g.account.mode_interval_seconds;
    const double now = seconds[static_cast<size_t>(mode - kModes.begin())];
    const double full = g.account.full_at_least_seconds;
    if (full == 0 || now <= rule.threshold * full) return "";
    return absl::StrFormat(
        "a step takes %.3g s in %s, and would take %.3g s in FULL", now,
        protocol::ModeName(g.in_force->mode), full);
  });
}

// Once its trainers attach again, or after the window, it is told of no more.
Findings JobFailed(const Facts& facts, const AlertRule& rule) {
  return OfJobs(facts, [&](const GroupSnapshot& g) -> std::string {
    if (g.phase != GroupPhase::kFailed ||
        g.ended_seconds.value_or(0) > rule.window_seconds) {
      return "";
    }
    return absl::StrCat("it ended: ", g.reason);
  });
}

Findings StepStalls(const Facts& facts, const AlertRule&) {
  return OfJobs(facts, [](const GroupSnapshot& g) {
    return g.waits_for.empty() ? ""
                               : absl::StrCat("all wait for ", g.waits_for);
  });
}

Findings Straggler(const Facts& facts, const AlertRule& rule) {
  Findings findings;
  for (const GroupSnapshot& group : facts.snapshot.groups) {
    const auto track = facts.jobs.find(group.group);
    if (group.phase != GroupPhase::kRunning || track == facts.jobs.end()) {
      continue;
    }
    std::vector<std::pair<std::string, double>> means;  // Of seconds, by agent.
    double sum = 0;
    for (const AgentPace& pace : group.paces) {
      const auto mean = track->second.ComputeSeconds(
          pace.agent, rule.window_seconds, facts.now);
      if (!mean) continue;
      means.emplace_back(pace.agent, *mean);
      sum += *mean;
    }
    if (means.size() < 2) continue;
    for (const auto& [agent, mean] : means) {
      const double others =
          (sum - mean) / static_cast<double>(means.size() - 1);
      if (mean <= rule.threshold * others) continue;
      findings.push_back(
          {group.group, absl::StrCat(group.group.ToString(), " ", agent),
           absl::StrFormat("all wait for agent %s: its trainers compute %.3g s "
                           "a step, the others %.3g s (means of %d minutes)",
                           agent, mean, others, rule.window_seconds / 60)});
    }
  }
  return findings;
}

std::string NameOf(const Direction& direction) {
  return absl::StrCat(direction.first, " to ", direction.second);
}

Findings LinkSlow(const Facts& facts, const AlertRule& rule) {
  Findings findings;
  for (const auto& [direction, link] : facts.links.links()) {
    const double rate = link.points.back().rate;
    const double median = link.median_rate();
    if (!link.seen || !link.awaited || rate <= 0 ||
        rate >= rule.threshold * median) {
      continue;
    }
    findings.push_back(
        {std::nullopt, NameOf(direction),
         absl::StrCat("from ", direction.first, " to ", direction.second,
                      " go ", RateText(rate), ", and went ", RateText(median),
                      " in the middle of the hour")});
  }
  return findings;
}

Findings LinkAsymmetric(const Facts& facts, const AlertRule& rule) {
  Findings findings;
  const auto& links = facts.links.links();
  for (const auto& [direction, link] : links) {
    const auto back = links.find({direction.second, direction.first});
    if (!link.seen || !link.awaited || back == links.end()) continue;
    const double rate = link.points.back().rate;
    const double other = back->second.points.back().rate;
    if (rate <= 0 || rate >= rule.threshold * other) continue;
    findings.push_back({std::nullopt, NameOf(direction),
                        absl::StrCat("from ", direction.first, " to ",
                                     direction.second, " go ", RateText(rate),
                                     ", the other way ", RateText(other))});
  }
  return findings;
}

Findings JournalReadOnly(const Facts& facts, const AlertRule&) {
  if (!facts.snapshot.read_only) return {};
  return {{std::nullopt, "coordinator",
           "the journal cannot be written: no job starts, no mode changes"}};
}

Findings VersionSkew(const Facts& facts, const AlertRule& rule) {
  std::set<std::string> versions = {base::kVersion};
  for (const AgentSnapshot& agent : facts.snapshot.agents) {
    if (agent.connected && !agent.version.empty()) {
      versions.insert(agent.version);
    }
  }
  if (static_cast<double>(versions.size()) <= rule.threshold) return {};
  return {{std::nullopt, "cluster",
           absl::StrCat("daemons of ", versions.size(), " versions run, from ",
                        *versions.begin(), " to ", *versions.rbegin())}};
}

Findings CertificateEnds(const Facts& facts, const AlertRule&) {
  if (!facts.certificates) return {};
  Findings findings;
  const auto check = [&](const char* whose, const base::CertificateLife& life) {
    if (!life.EndsSoon(facts.wall)) return;
    findings.push_back(
        {std::nullopt, whose, absl::StrCat(whose, " ", life.Text(facts.wall))});
  };
  check("the coordinator's certificate", facts.certificates->own);
  check("a CA above it", facts.certificates->ca);
  return findings;
}

Findings InsecureNetwork(const Facts& facts, const AlertRule&) {
  if (!facts.insecure_network) return {};
  return {{std::nullopt, "coordinator",
           "--insecure-network allows plain text beyond this machine"}};
}

struct Answer {
  std::string_view name;
  Findings (*findings)(const Facts&, const AlertRule&);
};

// PactrainCoordinatorLost is missing: who is lost cannot say so.
constexpr Answer kAnswers[] = {
    {"PactrainMaskChurn", MaskChurn},
    {"PactrainLinkSlow", LinkSlow},
    {"PactrainLinkAsymmetric", LinkAsymmetric},
    {"PactrainAgentLost", AgentLost},
    {"PactrainJournalReadOnly", JournalReadOnly},
    {"PactrainVersionSkew", VersionSkew},
    {"PactrainCertificateEnds", CertificateEnds},
    {"PactrainFallbacks", Fallbacks},
    {"PactrainRiskAboveBound", RiskAboveBound},
    {"PactrainNormAlarm", NormAlarm},
    {"PactrainSlowerThanFull", SlowerThanFull},
    {"PactrainStraggler", Straggler},
    {"PactrainStepStalls", StepStalls},
    {"PactrainJobFailed", JobFailed},
    {"PactrainJobWaits", JobWaits},
    {"PactrainInsecureNetwork", InsecureNetwork},
};

const Answer* AnswerOf(const AlertRule& rule) {
  const auto* it = std::find_if(
      std::begin(kAnswers), std::end(kAnswers),
      [&](const Answer& answer) { return answer.name == rule.name; });
  return it == std::end(kAnswers) ? nullptr : it;
}

}  // namespace

bool Conditions::IsSeenHere(const AlertRule& rule) {
  return AnswerOf(rule) != nullptr;
}

void Conditions::Evaluate(const Facts& facts) {
  for (size_t i = 0; i < standing_.size(); ++i) {
    const AlertRule& rule = AlertRules()[i];
    const Answer* answer = AnswerOf(rule);
    if (answer == nullptr) continue;
    std::map<std::string, double> since;
    for (const Standing& standing : standing_[i]) {
      since.emplace(standing.finding.subject, standing.since);
    }
    standing_[i].clear();
    for (Finding& finding : answer->findings(facts, rule)) {
      if (standing_[i].size() >= kMaxFindings) break;
      const auto known = since.find(finding.subject);
      const double from = known == since.end() ? facts.now : known->second;
      standing_[i].push_back(
          {std::move(finding), from, facts.now - from >= rule.for_seconds});
    }
  }
}

}  // namespace pactrain::coordinator
