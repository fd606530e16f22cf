#include "coordinator/page/job_track.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/counted.h"

namespace pactrain::coordinator {
namespace {

template <typename T>
void Push(std::deque<T>& list, T entry, size_t most) {
  list.push_back(std::move(entry));
  while (list.size() > most) list.pop_front();
}

std::string Cut(std::string text) {
  if (text.size() <= kMaxEntryText) return text;
  text.resize(kMaxEntryText);
  return text + "...";
}

float KnownOr(const std::optional<double>& value) {
  return value ? static_cast<float>(*value) : kUnknown;
}

// Those that nobody asked for.
uint32_t FallbacksOf(const AccountSnapshot& account) {
  uint64_t count = 0;
  for (size_t i = 0; i < kFallbacks.size(); ++i) {
    if (kFallbacks[i].cause != FallbackCause::kPin) {
      count += account.fallbacks[i];
    }
  }
  return static_cast<uint32_t>(count);
}

// Of the mode in force.
float InForce(const GroupSnapshot& group,
              const std::array<double, kModes.size()>& by_mode) {
  if (!group.in_force) return kUnknown;
  const auto mode =
      std::find(kModes.begin(), kModes.end(), group.in_force->mode);
  const double value = by_mode[static_cast<size_t>(mode - kModes.begin())];
  return value > 0 ? static_cast<float>(value) : kUnknown;
}

std::string NamesOf(const std::set<std::string>& names) {
  constexpr size_t kShown = 5;
  std::string text = absl::StrJoin(
      names.begin(),
      std::next(names.begin(),
                static_cast<std::ptrdiff_t>(std::min(kShown, names.size()))),
      ", ");
  if (names.size() > kShown) {
    absl::StrAppend(&text, " and ", names.size() - kShown, " more");
  }
  return text;
}

// REQUIRES: elements > 0.
double KeepOf(const GroupSnapshot& group) {
  return static_cast<double>(group.kept_elements) /
         static_cast<double>(group.elements);
}

std::set<std::string> LostOf(const GroupSnapshot& group) {
  return {group.lost_agents.begin(), group.lost_agents.end()};
}

std::set<std::string> Without(const std::set<std::string>& all,
                              const std::set<std::string>& some) {
  std::set<std::string> rest;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

}  // namespace

std::string ModeText(protocol::Mode mode, protocol::Codec codec) {
  return absl::StrCat(protocol::ModeName(mode), " ",
                      protocol::CodecName(codec));
}

void JobTrack::Observe(const GroupSnapshot& group, double now, bool at_start) {
  NoteMode(group, now, at_start);
  NoteEvents(group, now, at_start);
  NotePaces(group, now);
  if (points_.empty() ||
      now - points_.back().at >= absl::ToDoubleSeconds(kPointEvery)) {
    AddPoint(group, now);
  }
  began_ = true;
  phase_ = group.phase;
  generation_ = group.generation ? group.generation->number : 0;
  account_ = group.account;
  failed_ = group.failed_attempts_total;
  norm_alarms_ = group.norm_alarms_total;
  lost_ = LostOf(group);
  if (keep_ != group.keep_by_parameter) keep_at_ = now;
  keep_ = group.keep_by_parameter;
}

void JobTrack::NoteMode(const GroupSnapshot& group, double now, bool at_start) {
  Period period = {now, "", Cut(group.reason), 0, at_start};
  if (group.in_force) {
    period.mode = ModeText(group.in_force->mode, group.in_force->codec);
    period.reason = Cut(group.in_force->reason);
    period.version = group.in_force->version;
  } else if (group.phase == GroupPhase::kRunning) {
    period.mode = "unknown";  // After a restart, until agents tell.
  }
  const uint64_t generation = group.generation ? group.generation->number : 0;
  const protocol::Decision* first =
      group.generation ? &group.generation->decision : nullptr;
  if (first != nullptr && generation != generation_ && group.in_force &&
      first->version < period.version && !at_start) {
    // It was in force for less than a snapshot's time.
    Push(periods_,
         {now, ModeText(first->mode, first->codec), Cut(first->reason),
          first->version, false},
         kMaxEntries);
  }
  // Which decision is in force agents tell with their first steps.
  const bool first_told = !periods_.empty() && periods_.back().before &&
                          periods_.back().version == 0 &&
                          phase_ == group.phase && generation == generation_;
  if (first_told) {
    period.at = periods_.back().at;
    period.before = true;
    periods_.back() = std::move(period);
  } else if (periods_.empty() || phase_ != group.phase ||
             periods_.back().version != period.version) {
    Push(periods_, std::move(period), kMaxEntries);
  } else if (period.version == 0) {
    periods_.back().reason = period.reason;  // Who is waited for.
  }
  if (!group.in_force || group.in_force->mask_digest.empty()) return;
  std::string digest = group.in_force->mask_digest.ToString();
  if (mask_sets_.empty() || mask_sets_.back().digest != digest) {
    const double keep = group.elements == 0 ? 1 : KeepOf(group);
    Push(mask_sets_,
         {now, std::move(digest), keep,
          mask_sets_.empty() && periods_.back().before},
         kMaxEntries);
  } else if (group.elements > 0) {
    // The decision may have been seen before what its masks keep.
    mask_sets_.back().keep = KeepOf(group);
  }
}

void JobTrack::NoteEvents(const GroupSnapshot& group, double now,
                          bool at_start) {
  const uint64_t generation = group.generation ? group.generation->number : 0;
  if (generation != generation_ && group.generation) {
    Tell(now, "membership",
         absl::StrCat(
             at_start ? "this coordinator started; " : "", "generation ",
             generation, at_start ? " was there: " : " began: ",
             base::Counted(group.generation->world_size, "rank"), " at ",
             base::Counted(group.generation->members.size(), "agent"), " of ",
             base::Counted(group.generation->sites.size(), "site")));
  }
  if (!began_) return;
  if (phase_ == GroupPhase::kRunning && group.phase != GroupPhase::kRunning) {
    Tell(now, group.phase == GroupPhase::kFailed ? "fault" : "membership",
         absl::StrCat("generation ", generation_, " ended: ", group.reason));
  }
  if (group.failed_attempts_total > failed_) {
    Tell(now, "fault",
         absl::StrCat(group.failed_attempts_total - failed_,
                      " attempts of steps failed and were made again"));
  }
  if (group.norm_alarms_total > norm_alarms_) {
    Tell(now, "fault", "gradients were far above their usual size");
  }
  for (size_t i = 0; i < kFallbacks.size(); ++i) {
    if (group.account.fallbacks[i] <= account_.fallbacks[i]) continue;
    const bool pinned = kFallbacks[i].cause == FallbackCause::kPin;
    Tell(now, pinned ? "pin" : "fault",
         absl::StrCat(pinned ? "went back from " : "fell back from ",
                      protocol::ModeName(kFallbacks[i].from), " to ",
                      protocol::ModeName(kFallbacks[i].to), ": ",
                      group.in_force ? group.in_force->reason : group.reason));
  }
  if (group.account.mask_changes > account_.mask_changes) {
    Tell(now, "masks",
         absl::StrCat("all ranks agreed on other masks",
                      group.masks && !group.masks->moved.empty()
                          ? absl::StrCat("; most moved: ", group.masks->moved)
                          : ""));
  }
  const std::set<std::string> lost = LostOf(group);
  if (const auto gone = Without(lost, lost_); !gone.empty()) {
    Tell(now, "fault",
         absl::StrCat("no stream any more from agent ", NamesOf(gone)));
  }
  if (const auto back = Without(lost_, lost); !back.empty()) {
    Tell(now, "membership", absl::StrCat("back, or replaced: ", NamesOf(back)));
  }
}

void JobTrack::AddPoint(const GroupSnapshot& group, double now) {
  Point point;
  point.at = now;
  if (!points_.empty()) {
    const double seconds = now - points_.back().at;
    const auto rate = [&](double before, double after) {
      return static_cast<float>(std::max(0.0, after - before) / seconds);
    };
    point.dense_rate = rate(dense_bytes_, group.account.dense_bytes);
    point.wire_rate = rate(wire_bytes_, group.account.sent_bytes);
  }
  dense_bytes_ = group.account.dense_bytes;
  wire_bytes_ = group.account.sent_bytes;
  point.measured = InForce(group, group.account.mode_interval_seconds);
  point.predicted = InForce(group, group.account.mode_predicted_seconds);
  point.risk = KnownOr(group.risk);
  point.share = KnownOr(group.exchange_share);
  if (group.elements > 0) {
    point.keep = static_cast<float>(KeepOf(group));
  }
  point.mask_changes = static_cast<uint32_t>(group.account.mask_changes);
  point.fallbacks = FallbacksOf(group.account);
  point.norm_alarms = static_cast<uint32_t>(group.norm_alarms_total);
  Push(points_, point, kMaxPoints);
}

void JobTrack::NotePaces(const GroupSnapshot& group, double now) {
  constexpr double kEvery = 30;  // Seconds of a sum.
  const double begin = now - absl::ToDoubleSeconds(kPaceWindow);
  std::map<std::string, std::deque<Pace>> paces;
  // A generation that has ended has no pace, and the next one its own.
  if (group.phase != GroupPhase::kRunning) {
    paces_.clear();
    return;
  }
  for (const AgentPace& pace : group.paces) {
    std::deque<Pace>& sums = paces[pace.agent] = std::move(paces_[pace.agent]);
    if (sums.empty() || now - sums.back().at >= kEvery) sums.push_back({now});
    sums.back().sum += pace.interval_seconds - pace.wait_seconds;
    ++sums.back().snapshots;
    while (sums.front().at < begin) sums.pop_front();
  }
  paces_ = std::move(paces);
}

std::optional<double> JobTrack::ComputeSeconds(const std::string& agent,
                                               double seconds,
                                               double now) const {
  const auto it = paces_.find(agent);
  if (it == paces_.end()) return std::nullopt;
  Pace all;
  for (const Pace& pace : it->second) {
    if (pace.at < now - seconds) continue;
    all.sum += pace.sum;
    all.snapshots += pace.snapshots;
  }
  if (all.snapshots == 0) return std::nullopt;
  return all.sum / all.snapshots;
}

void JobTrack::Tell(double now, const char* kind, std::string text) {
  Push(events_, {now, kind, Cut(std::move(text))}, kMaxEntries);
}

uint32_t JobTrack::Grown(uint32_t Point::*counter, double seconds,
                         double now) const {
  if (points_.empty()) return 0;
  const auto first =
      std::find_if(points_.begin(), points_.end(),
                   [&](const Point& p) { return p.at >= now - seconds; });
  if (first == points_.end()) return 0;
  return points_.back().*counter - (*first).*counter;
}

}  // namespace pactrain::coordinator
