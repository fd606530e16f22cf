#include "coordinator/driver/witnesses.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/tls/mac.h"

namespace pactrain::coordinator {

using protocol::AuditHead;

base::Secret Witnesses::ProofOf(const AuditHead& head) const {
  return base::ComputeMac(
      journal_->cluster_secret(),
      {"pactrain end of an audit log", journal_->identity().cluster_id,
       absl::StrCat(head.term), absl::StrCat(head.number), head.hash});
}

AuditHead Witnesses::Head() const {
  const AuditFacts log = journal_->audit();
  if (log.newest == 0) return {};
  AuditHead head = {journal_->identity().term, log.newest, log.hash};
  head.proof = ProofOf(head);
  return head;
}

std::optional<Witnesses::Trouble> Witnesses::Compare(
    const std::string& agent, const AuditHead& head) const {
  const AuditFacts log = journal_->audit();
  // What came after the backup went with the state that it replaced.
  if (log.restored > 0 && head.number >= log.restored &&
      head.term <= log.restored_term) {
    return std::nullopt;
  }
  const bool before = head.term < journal_->identity().term;
  const uint64_t end = before ? log.at_start : log.newest;
  const std::string told = absl::StrCat("agent ", agent, " was told of line ",
                                        head.number, " in term ", head.term);
  if (head.number > end) {
    return Trouble{
        head.number == end + 1
            ? absl::StrCat("line ", head.number, " is missing")
            : absl::StrCat("lines ", end + 1, " to ", head.number,
                           " are missing"),
        absl::StrCat(told, "; the log ended at line ", end,
                     before ? absl::StrCat(" when term ",
                                           journal_->identity().term, " began")
                            : "")};
  }
  const absl::StatusOr<std::string> hash = journal_->AuditHash(head.number);
  if (!hash.ok() || head.number < log.cut || *hash == head.hash) {
    return std::nullopt;
  }
  if (hash->empty()) {
    return Trouble{absl::StrCat("line ", head.number, " is missing"), told};
  }
  return Trouble{absl::StrCat("line ", head.number,
                              " is not what it was, or one before it is not"),
                 absl::StrCat(told, ", which was another one")};
}

std::optional<Witnesses::Trouble> Witnesses::Hear(
    const std::string& agent, const std::vector<AuditHead>& heads,
    absl::Duration now) {
  std::optional<Trouble> first;
  std::vector<AuditHead> proven;
  for (const AuditHead& head : heads) {
    if (!base::IsSameMac(head.proof, ProofOf(head))) continue;
    proven.push_back(head);
    if (!first) first = Compare(agent, head);
  }
  if (proven.empty()) return std::nullopt;
  if (!agents_.contains(agent) && agents_.size() >= max_agents_) {
    agents_.erase(std::min_element(agents_.begin(), agents_.end(),
                                   [](const auto& a, const auto& b) {
                                     return a.second.heard < b.second.heard;
                                   }));
  }
  Kept& kept = agents_[agent];
  kept.heard = now;
  kept.contradicts |= first.has_value();
  for (const AuditHead& head : proven) protocol::KeepHead(head, kept.heads);
  return first;
}

size_t Witnesses::contradicting() const {
  return static_cast<size_t>(std::count_if(
      agents_.begin(), agents_.end(),
      [](const auto& agent) { return agent.second.contradicts; }));
}

std::vector<Witness> Witnesses::all() const {
  std::vector<Witness> all;
  for (const auto& [agent, kept] : agents_) {
    all.push_back({agent, kept.heads});
  }
  return all;
}

}  // namespace pactrain::coordinator
