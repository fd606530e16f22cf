#include "coordinator/driver/line_budget.h"

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

LineBudget::Word LineBudget::Take(const protocol::Caller& caller,
                                  uint64_t lines, absl::Duration now) {
  std::string name = SourceOf(caller);
  if (!sources_.contains(name) && sources_.size() >= kMaxSources) {
    name = kOthers;
  }
  Source& source = sources_.try_emplace(name, Source{now}).first->second;
  if (source.lines < kMaxLinesOfOne) {
    source.lines += lines;
    return Word::kKept;
  }
  const bool is_first = source.left_out.lines == 0;
  if (is_first) source.left_out = {caller, now, 0};
  source.left_out.lines += lines;
  return is_first ? Word::kFirstLeftOut : Word::kLeftOut;
}

uint64_t LineBudget::LinesOf(const protocol::Caller& caller) const {
  const auto it = sources_.find(SourceOf(caller));
  return it == sources_.end() ? 0 : it->second.lines;
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
