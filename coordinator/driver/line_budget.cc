#include "coordinator/driver/line_budget.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "protocol/identity.h"

namespace pactrain::coordinator {
namespace {

// Beyond kMaxSources; no identity and no key is called so.
constexpr char kOthers[] = "others";

}  // namespace

std::string SourceOf(const protocol::Caller& caller) {
  if (caller.who == "stranger") return "";
  const auto identity = protocol::IdentityOf({caller.who});
  const bool bound = !identity.ok() || !identity->job.empty();
  return bound && absl::StartsWith(caller.serial, "key/") ? caller.serial
                                                          : caller.who;
}

uint64_t LineBudget::Source::RoomOf(const std::string& job) const {
  const auto it = by_job.find(job);
  const uint64_t used = lines + (it == by_job.end() ? 0 : it->second);
  return kMaxLinesOfOne - std::min(used, kMaxLinesOfOne);
}

std::string LineBudget::BudgetOf(const protocol::Caller& caller) const {
  std::string name = SourceOf(caller);
  const bool has_own = sources_.contains(name) || sources_.size() < kMaxSources;
  return has_own ? name : kOthers;
}

LineBudget::Word LineBudget::Take(const protocol::Caller& caller,
                                  const std::string& job, uint64_t lines,
                                  absl::Duration now) {
  Source& source =
      sources_.try_emplace(BudgetOf(caller), Source{now}).first->second;
  if (source.RoomOf(job) > 0) {
    source.lines += lines;
    source.by_job[job] += lines;
    return Word::kKept;
  }
  const bool is_first = source.left_out.lines == 0;
  if (is_first) source.left_out = {caller, job, now, 0};
  source.left_out.lines += lines;
  return is_first ? Word::kFirstLeftOut : Word::kLeftOut;
}

uint64_t LineBudget::RoomOf(const protocol::Caller& caller,
                            const std::string& job) const {
  const auto it = sources_.find(BudgetOf(caller));
  return it == sources_.end() ? kMaxLinesOfOne : it->second.RoomOf(job);
}

std::vector<LineBudget::LeftOut> LineBudget::TakeOver(absl::Duration now) {
  std::vector<LeftOut> over;
  std::erase_if(sources_, [&](const auto& entry) {
    const Source& source = entry.second;
    if (now - source.since < kTime) return false;
    if (source.left_out.lines > 0) over.push_back(source.left_out);
    return true;
  });
  return over;
}

}  // namespace pactrain::coordinator
