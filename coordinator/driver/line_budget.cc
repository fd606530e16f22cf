#include "coordinator/driver/line_budget.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "protocol/identity.h"

namespace pactrain::coordinator {
namespace {

// Beyond kMaxSources and kMaxJobsOfOne; no identity, key or job is called so.
constexpr char kOthers[] = "all others";

}  // namespace

std::string SourceOf(const protocol::Caller& caller) {
  if (caller.who == "stranger") return "";
  const auto identity = protocol::IdentityOf({caller.who});
  const bool bound = !identity.ok() || !identity->job.empty();
  return bound && absl::StartsWith(caller.serial, "key/") ? caller.serial
                                                          : caller.who;
}

std::string LineBudget::Source::BudgetOf(const std::string& job) const {
  return jobs.contains(job) || jobs.size() < kMaxJobsOfOne ? job : kOthers;
}

uint64_t LineBudget::Source::RoomOf(const std::string& job) const {
  const auto it = jobs.find(BudgetOf(job));
  const uint64_t used = it == jobs.end() ? 0 : it->second.lines;
  const uint64_t left = kMaxLinesOfOne - std::min(lines + used, kMaxLinesOfOne);
  return std::max(left, kLinesOfAnyJob - std::min(used, kLinesOfAnyJob));
}

std::string LineBudget::BudgetOf(const protocol::Caller& caller) const {
  std::string name = SourceOf(caller);
  return sources_.contains(name) || sources_.size() < kMaxSources ? name
                                                                  : kOthers;
}

LineBudget::Word LineBudget::Take(const protocol::Caller& caller,
                                  const std::string& job, uint64_t lines,
                                  absl::Duration now) {
  Source& source =
      sources_.try_emplace(BudgetOf(caller), Source{now}).first->second;
  const bool kept = source.RoomOf(job) > 0;
  Job& of = source.jobs[source.BudgetOf(job)];
  if (kept) {
    source.lines += lines;
    of.lines += lines;
    return Word::kKept;
  }
  const bool is_first = of.left_out.lines == 0;
  if (is_first) of.left_out = {caller, job, now, 0};
  of.left_out.lines += lines;
  return is_first ? Word::kFirstLeftOut : Word::kLeftOut;
}

uint64_t LineBudget::RoomOf(const protocol::Caller& caller,
                            const std::string& job) const {
  const auto it = sources_.find(BudgetOf(caller));
  return (it == sources_.end() ? Source{} : it->second).RoomOf(job);
}

std::vector<LineBudget::LeftOut> LineBudget::TakeOver(absl::Duration now) {
  std::vector<LeftOut> over;
  std::erase_if(sources_, [&](const auto& entry) {
    const Source& source = entry.second;
    if (now - source.since < kTime) return false;
    for (const auto& [job, of] : source.jobs) {
      if (of.left_out.lines > 0) over.push_back(of.left_out);
    }
    return true;
  });
  return over;
}

}  // namespace pactrain::coordinator
