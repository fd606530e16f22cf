#include "coordinator/page/page_model.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/version.h"
#include "coordinator/core/planner.h"
#include "coordinator/page/job_parts.h"
#include "coordinator/page/json.h"
#include "coordinator/page/shown_groups.h"

namespace pactrain::coordinator {
namespace {

constexpr size_t kMaxTimes = 64;  // Viewers that lag more begin anew.
constexpr size_t kShownReason = 1000;
constexpr size_t kShownName = 100;  // Coordinators take no longer ones.
constexpr size_t kShownAgents = 10;
constexpr size_t kShownLost = 20;

double Saved(const GroupSnapshot& group) {
  return group.account.dense_bytes - group.account.sent_bytes;
}

std::optional<double> Keep(const GroupSnapshot& group) {
  if (group.elements == 0) return std::nullopt;
  return static_cast<double>(group.kept_elements) /
         static_cast<double>(group.elements);
}

void WriteDecision(const protocol::Decision& decision, JsonWriter& json) {
  json.Object();
  json.Key("version").Number(static_cast<double>(decision.version));
  json.Key("mode").Text(ModeText(decision.mode, decision.codec));
  json.Key("masks").Text(
      decision.mask_digest.empty() ? "" : decision.mask_digest.ToString(), 12);
  json.Key("reason").Text(decision.reason, kShownReason);
  json.End();
}

// What is 0 is not known.
void WriteByMode(const char* name,
                 const std::array<double, kModes.size()>& by_mode,
                 JsonWriter& json) {
  json.Key(name).Array();
  for (const double value : by_mode) {
    json.Number(value > 0 ? std::optional(value) : std::nullopt);
  }
  json.End();
}

void WritePlan(const GroupSnapshot& group, JsonWriter& json) {
  json.Object();
  json.Key("job").Text(group.group.ToString(), kShownName);
  json.Key("text").Text(
      PlanText(group.generation->sites, group.generation->plan), kShownReason);
  json.Key("sites").Array();
  for (const std::string& site : group.generation->sites) json.Text(site);
  json.End();
  json.Key("edges").Array();
  for (const auto& [a, b] : EdgesOf(*group.generation)) {
    json.Array().Text(a).Text(b).End();
  }
  json.End();
  json.End();
}

// One array for each value, so that a chart takes it as it is.
template <typename List, typename Value>
void WriteColumn(const char* name, const List& points, double after,
                 Value value, JsonWriter& json) {
  json.Key(name).Array();
  for (const auto& point : points) {
    if (point.at > after) json.Number(static_cast<double>(value(point)));
  }
  json.End();
}

}  // namespace

void PageModel::Observe(StateSnapshot snapshot,
                        std::optional<base::CertificateLives> certificates,
                        absl::Duration now_duration, absl::Time wall) {
  const double now = absl::ToDoubleSeconds(now_duration);
  ++tick_;
  times_.push_back(now);
  if (times_.size() > kMaxTimes) times_.pop_front();
  wall_offset_ = absl::ToDoubleSeconds(wall - absl::UnixEpoch()) - now;
  snapshot_ = std::move(snapshot);
  hidden_groups_ = CutToShown(kMaxGroups, snapshot_.groups);
  connected_.clear();
  for (const AgentSnapshot& agent : snapshot_.agents) {
    connected_[agent.agent] = agent.connected;
  }
  std::set<protocol::GroupId> here;
  for (const GroupSnapshot& group : snapshot_.groups) {
    here.insert(group.group);
    if (!jobs_.contains(group.group)) jobs_changed_ = tick_;
    jobs_[group.group].Observe(group, now, tick_ == 1);
    // Also where the coordinator has forgotten it.
    for (const std::string& agent : group.lost_agents) {
      connected_.emplace(agent, false);
    }
  }
  const auto gone = [&](const auto& entry) {
    return !here.contains(entry.first);
  };
  if (std::erase_if(jobs_, gone) > 0) jobs_changed_ = tick_;
  std::erase_if(summaries_, gone);
  links_.Observe(snapshot_, now);
  conditions_.Evaluate({snapshot_, jobs_, links_, certificates,
                        settings_.insecure_network, now, wall});
  for (const GroupSnapshot& group : snapshot_.groups) {
    std::string json = SummaryOf(group);
    Summary& summary = summaries_[group.group];
    if (summary.json == json) continue;
    summary = {std::move(json), tick_};
  }
}

bool PageModel::IsAllAfter(uint64_t tick) const {
  return tick == 0 || tick > tick_ || tick_ - tick >= times_.size();
}

double PageModel::TimeOf(uint64_t tick) const {
  if (IsAllAfter(tick)) return -std::numeric_limits<double>::infinity();
  return times_[times_.size() - 1 - (tick_ - tick)];
}

std::string PageModel::SummaryOf(const GroupSnapshot& group) const {
  const JobTrack& track = jobs_.at(group.group);
  JsonWriter json;
  json.Object();
  json.Key("id").Text(group.group.ToString(), kShownName);
  json.Key("phase").Text(GroupPhaseName(group.phase));
  json.Key("reason").Text(group.reason, kShownReason);
  json.Key("mode").Text(
      group.in_force ? ModeText(group.in_force->mode, group.in_force->codec)
                     : "");
  json.Key("since").Number(Wall(track.periods().back().at));
  json.Key("since_before").Bool(track.periods().back().before);
  json.Key("pin").Text(group.pin ? group.pin->ToString() : "");
  json.Key("step").Number(static_cast<double>(group.committed_step));
  json.Key("steps").Number(static_cast<double>(group.committed_total));
  const auto& generation = group.generation;
  json.Key("ranks").Number(generation ? generation->world_size : 0);
  json.Key("agents").Number(
      generation ? static_cast<double>(generation->members.size()) : 0);
  json.Key("sites").Number(
      generation ? static_cast<double>(generation->sites.size()) : 0);
  json.Key("missing").Number(static_cast<double>(group.lost_agents.size()));
  json.Key("counted").Number(
      absl::ToDoubleSeconds(group.counted_since - absl::UnixEpoch()));
  json.Key("saved_bytes").Number(Saved(group));
  json.Key("saved_seconds").Number(group.account.saved_seconds);
  json.Key("saved_by").Text(SavedByName(group.account.saved_by));
  json.Key("dense_bytes").Number(group.account.dense_bytes);
  json.Key("kept_bytes").Number(group.account.kept_bytes);
  json.Key("sent_bytes").Number(group.account.sent_bytes);
  json.Key("money").Number(
      settings_.price_per_gb > 0
          ? std::optional(Saved(group) * 1e-9 * settings_.price_per_gb)
          : std::nullopt);
  json.Key("keep").Number(Keep(group));
  json.Key("share").Number(group.exchange_share);
  json.Key("risk").Number(group.risk);
  json.End();
  return json.Take();
}

void PageModel::WriteConditions(
    JsonWriter& json, const std::function<bool(const Finding&)>& wanted) const {
  json.Key("conditions").Array();
  for (size_t i = 0; i < conditions_.standing().size(); ++i) {
    json.Object();
    json.Key("name").Text(AlertRules()[i].name);
    json.Key("found").Array();
    for (const Conditions::Standing& standing : conditions_.standing()[i]) {
      if (!wanted(standing.finding)) continue;
      json.Object();
      const auto& job = standing.finding.job;
      json.Key("job").Text(job ? job->ToString() : "", kShownName);
      json.Key("text").Text(standing.finding.text, kShownReason);
      json.Key("since").Number(Wall(standing.since));
      json.Key("fires").Bool(standing.fires);
      json.End();
    }
    json.End();
    json.End();
  }
  json.End();
}

std::string PageModel::Overview(uint64_t since) const {
  const bool all = since < jobs_changed_ || IsAllAfter(since);
  JsonWriter json;
  json.Object();
  json.Key("tick").Number(static_cast<double>(tick_));
  json.Key("now").Number(Wall(times_.empty() ? 0 : times_.back()));
  json.Key("full").Bool(all);
  json.Key("version").Text(base::kVersion);
  json.Key("cluster").Text(snapshot_.cluster_id);
  json.Key("term").Number(static_cast<double>(snapshot_.term));
  json.Key("price_per_gb").Number(settings_.price_per_gb);
  json.Key("hidden").Number(static_cast<double>(hidden_groups_.size()));
  double connected = 0;
  for (const auto& [name, is] : connected_) connected += is;
  json.Key("agents").Number(static_cast<double>(connected_.size()));
  json.Key("connected").Number(connected);
  json.Key("lost").Array();
  size_t shown = 0;
  for (const auto& [name, is] : connected_) {
    if (!is && shown++ < kShownLost) json.Text(name);
  }
  json.End();
  WriteConditions(json, [](const Finding&) { return true; });
  json.Key("jobs").Array();
  for (const auto& [id, summary] : summaries_) {
    if (all || summary.changed > since) json.Raw(summary.json);
  }
  json.End();
  json.End();
  return json.Take();
}

void PageModel::WritePoints(const JobTrack& track, double after,
                            JsonWriter& json) const {
  const auto& points = track.points();
  using Point = JobTrack::Point;
  json.Key("points").Object();
  WriteColumn(
      "at", points, after, [&](const Point& p) { return Wall(p.at); }, json);
  const std::pair<const char*, float Point::*> columns[] = {
      {"dense", &Point::dense_rate},  {"wire", &Point::wire_rate},
      {"measured", &Point::measured}, {"predicted", &Point::predicted},
      {"risk", &Point::risk},         {"keep", &Point::keep},
      {"share", &Point::share},
  };
  for (const auto& [name, rate] : columns) {
    const auto value = [rate = rate](const Point& p) { return p.*rate; };
    WriteColumn(name, points, after, value, json);
  }
  json.End();
}

void PageModel::WriteTrack(const JobTrack& track, JsonWriter& json) const {
  json.Key("timeline").Array();
  for (const JobTrack::Period& period : track.periods()) {
    json.Object();
    json.Key("at").Number(Wall(period.at));
    json.Key("before").Bool(period.before);
    json.Key("mode").Text(period.mode);
    json.Key("version").Number(static_cast<double>(period.version));
    json.Key("reason").Text(period.reason);
    json.End();
  }
  json.End();
  json.Key("mask_sets").Array();
  for (const JobTrack::MaskSet& masks : track.mask_sets()) {
    json.Object();
    json.Key("at").Number(Wall(masks.at));
    json.Key("before").Bool(masks.before);
    json.Key("digest").Text(masks.digest, 12);
    json.Key("keep").Number(masks.keep);
    json.End();
  }
  json.End();
  json.Key("events").Array();
  for (const JobTrack::Event& event : track.events()) {
    json.Object();
    json.Key("at").Number(Wall(event.at));
    json.Key("kind").Text(event.kind);
    json.Key("text").Text(event.text);
    json.End();
  }
  json.End();
}

void PageModel::WriteAgents(const GroupSnapshot& group,
                            JsonWriter& json) const {
  std::vector<AgentPace> paces = group.paces;
  const auto compute = [](const AgentPace& pace) {
    return pace.interval_seconds - pace.wait_seconds;
  };
  const size_t shown = std::min(kShownAgents, paces.size());
  std::partial_sort(
      paces.begin(), paces.begin() + static_cast<std::ptrdiff_t>(shown),
      paces.end(),
      [&](const auto& a, const auto& b) { return compute(a) > compute(b); });
  paces.resize(shown);
  std::map<std::string, std::string> sites;
  if (group.generation) {
    for (const protocol::Member& member : group.generation->members) {
      sites[member.agent] = member.site;
    }
  }
  json.Key("slowest").Array();
  for (const AgentPace& pace : paces) {
    json.Object();
    json.Key("agent").Text(pace.agent);
    json.Key("site").Text(sites[pace.agent]);
    json.Key("compute").Number(compute(pace));
    json.Key("wait").Number(pace.wait_seconds);
    json.End();
  }
  json.End();
  json.Key("lost").Array();
  for (const std::string& agent : group.lost_agents) json.Text(agent);
  json.End();
  WritePaths(group, json);
}

std::string PageModel::Job(absl::string_view id, uint64_t since) const {
  const auto group = std::find_if(
      snapshot_.groups.begin(), snapshot_.groups.end(),
      [&](const GroupSnapshot& g) { return g.group.ToString() == id; });
  JsonWriter json;
  json.Object();
  json.Key("tick").Number(static_cast<double>(tick_));
  json.Key("now").Number(Wall(times_.empty() ? 0 : times_.back()));
  if (group == snapshot_.groups.end()) {
    const bool hidden = hidden_groups_.contains(std::string(id));
    json.Key(hidden ? "hidden" : "gone").Bool(true).End();
    return json.Take();
  }
  json.Key("job").Raw(summaries_.at(group->group).json);
  WriteConditions(json,
                  [&](const Finding& f) { return f.job == group->group; });
  json.Key("risk_bound").Number(snapshot_.risk_bound);
  json.Key("masks");
  if (group->masks) {
    json.Object();
    json.Key("rank").Number(group->masks->rank);
    json.Key("unchanged").Number(group->masks->steps_unchanged);
    json.Key("settle").Number(group->masks->settle_steps);
    json.Key("changed").Number(
        group->masks->changed_step
            ? std::optional(static_cast<double>(*group->masks->changed_step))
            : std::nullopt);
    json.Key("moved").Text(group->masks->moved);
    json.End();
  } else {
    json.Raw("null");
  }
  json.Key("votes").Object();
  json.Key("for").Number(group->votes.in_favour);
  json.Key("settling").Number(group->votes.settling);
  json.Key("against").Number(group->votes.against);
  json.Key("missing").Number(group->votes.missing);
  json.End();
  json.Key("mode_seconds").Array();
  for (const double seconds : group->account.mode_seconds) json.Number(seconds);
  json.End();
  WriteByMode("step_seconds", group->account.mode_interval_seconds, json);
  WriteByMode("predicted_seconds", group->account.mode_predicted_seconds, json);
  json.Key("risk_clip").Number(group->risk_clip);
  WriteFailed(*group, json);
  WriteKeep(*group, jobs_.at(group->group), TimeOf(since), json);
  json.Key("prepared");
  if (group->prepared) {
    WriteDecision(*group->prepared, json);
  } else {
    json.Raw("null");
  }
  json.Key("decisions").Array();
  for (size_t i = 0; i < std::min<size_t>(group->history.size(), kMaxEntries);
       ++i) {
    WriteDecision(group->history[i], json);
  }
  json.End();
  WriteAgents(*group, json);
  const JobTrack& track = jobs_.at(group->group);
  WriteTrack(track, json);
  json.Key("full").Bool(IsAllAfter(since));
  WritePoints(track, TimeOf(since), json);
  json.End();
  return json.Take();
}

std::string PageModel::Links(uint64_t since) const {
  JsonWriter json;
  json.Object();
  json.Key("tick").Number(static_cast<double>(tick_));
  json.Key("now").Number(Wall(times_.empty() ? 0 : times_.back()));
  json.Key("hidden").Number(static_cast<double>(links_.hidden()));
  WriteConditions(json, [](const Finding& f) { return !f.job; });
  json.Key("plans").Array();
  for (const GroupSnapshot& group : snapshot_.groups) {
    if (group.phase == GroupPhase::kRunning) WritePlan(group, json);
  }
  json.End();
  const double after = TimeOf(since);
  json.Key("full").Bool(IsAllAfter(since));
  json.Key("every").Number(absl::ToDoubleSeconds(kPointEvery));
  json.Key("links").Array();
  for (const auto& [direction, link] : links_.links()) {
    json.Object();
    json.Key("from").Text(direction.first);
    json.Key("to").Text(direction.second);
    json.Key("rate").Number(link.seen ? link.points.back().rate : 0);
    json.Key("best").Number(link.best_rate());
    json.Key("median").Number(link.median_rate());
    json.Key("used").Number(link.seen ? link.points.back().used : 0);
    json.Key("use").Number(link.seen ? link.use() : 0);
    json.Key("rtt").Number(link.rtt);
    json.Key("awaited").Bool(link.seen && link.awaited);
    using Point = LinkTrack::Point;
    WriteColumn(
        "at", link.points, after, [&](const Point& p) { return Wall(p.at); },
        json);
    WriteColumn(
        "points", link.points, after, [](const Point& p) { return p.used; },
        json);
    json.End();
  }
  json.End();
  json.End();
  return json.Take();
}

std::string PageModel::Rules() {
  JsonWriter json;
  json.Array();
  for (const AlertRule& rule : AlertRules()) {
    json.Object();
    const std::pair<const char*, const char*> texts[] = {
        {"name", rule.name},     {"severity", rule.severity},
        {"expr", rule.expr},     {"symptom", rule.symptom},
        {"causes", rule.causes}, {"command", rule.command},
        {"do", rule.to_do},      {"not_mean", rule.not_mean},
    };
    for (const auto& [key, text] : texts) json.Key(key).Text(text);
    json.Key("for").Number(rule.for_seconds);
    json.Key("here").Bool(Conditions::IsSeenHere(rule));
    json.End();
  }
  json.End();
  return json.Take();
}

}  // namespace pactrain::coordinator
