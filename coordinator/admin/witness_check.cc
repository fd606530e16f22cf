#include "coordinator/admin/witness_check.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/one_line.h"

namespace pactrain::coordinator {
namespace {

std::string LinesText(uint64_t first, uint64_t last) {
  return first == last
             ? absl::StrCat("line ", first, " is missing")
             : absl::StrCat("line ", first, " is missing, and all to ", last);
}

}  // namespace

void WitnessCheck::Add(const std::string& agent,
                       const protocol::AuditHead& head) {
  kept_.push_back({base::OneLine(agent), head});
  hashes_[head.number];
}

void WitnessCheck::See(const v1::AuditLine& line) {
  if (oldest_ == 0) oldest_ = line.number();
  newest_ = line.number();
  if (const auto it = hashes_.find(newest_); it != hashes_.end()) {
    it->second = line.hash();
  }
  if (line.kind() == "state restored") restored_.insert(newest_);
  absl::string_view term = line.what();
  Started started = {newest_, 0};
  if (line.kind() == "coordinator started" &&
      absl::ConsumePrefix(&term, "term ") &&
      absl::SimpleAtoi(term, &started.term)) {
    started_.push_back(started);
  }
}

WitnessCheck::End WitnessCheck::EndOf(uint64_t term) const {
  const auto next =
      std::find_if(started_.begin(), started_.end(),
                   [&](const Started& started) { return started.term > term; });
  if (next == started_.end()) return {newest_, false};
  const uint64_t last = next->line - 1;
  if (restored_.contains(last)) return {last - 1, true};
  return {last, false};
}

absl::StatusOr<std::string> WitnessCheck::Result() const {
  struct Missing {
    uint64_t first, last;
    std::string text;
  };
  std::optional<Missing> missing;
  std::map<std::string, uint64_t> seen;  // The newest line of each agent.
  uint64_t restored = 0;
  for (const auto& [agent, head] : kept_) {
    const End end = EndOf(head.term);
    const std::string told = absl::StrCat("agent ", agent, " was told of line ",
                                          head.number, " in term ", head.term);
    std::optional<Missing> found;
    if (head.number > end.line) {
      if (end.restored) {
        ++restored;
        continue;
      }
      found = {end.line + 1, head.number,
               absl::StrCat(LinesText(end.line + 1, head.number), ": ", told)};
    } else if (head.number < oldest_) {
      continue;  // It is kept no more.
    } else if (hashes_.at(head.number) != head.hash) {
      found = {head.number, head.number,
               absl::StrCat("line ", head.number,
                            " is not what it was, or one before it is not: ",
                            told, ", which was another one")};
    } else {
      seen[agent] = std::max(seen[agent], head.number);
    }
    if (found &&
        (!missing || found->first < missing->first ||
         (found->first == missing->first && found->last > missing->last))) {
      missing = found;
    }
  }
  if (missing) {
    return absl::DataLossError(
        absl::StrCat("the audit log was changed: ", missing->text));
  }
  std::string text;
  for (const auto& [agent, line] : seen) {
    absl::StrAppend(&text, text.empty() ? "as agents were told: " : ", ", agent,
                    " (to line ", line, ")");
  }
  if (text.empty() && restored == 0) {
    return absl::FailedPreconditionError(
        "the chain is whole, and no agent was told of these lines, so nobody "
        "vouches for them: agents say what they keep when they connect");
  }
  if (text.empty()) text = "no agent was told of these lines";
  if (restored > 0) {
    absl::StrAppend(&text, "; ", restored, restored == 1 ? " end" : " ends",
                    " that agents keep went when a backup was restored");
  }
  return text + "\n";
}

}  // namespace pactrain::coordinator
