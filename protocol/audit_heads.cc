#include "protocol/audit_heads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace pactrain::protocol {
namespace {

constexpr absl::string_view kFirstLine = "pactrain audit heads 1";
constexpr size_t kFields = 4;  // Of a head: term, number, hash, proof.

bool IsHex(absl::string_view text) {
  return text.size() == 2 * kAuditHashBytes &&
         text.find_first_not_of("0123456789abcdef") == text.npos;
}

absl::string_view BytesOf(const base::Secret& secret) {
  return {reinterpret_cast<const char*>(secret.bytes.data()),
          secret.bytes.size()};
}

absl::StatusOr<AuditHead> ReadHead(absl::string_view line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
  AuditHead head;
  if (fields.size() != kFields || !absl::SimpleAtoi(fields[0], &head.term) ||
      !absl::SimpleAtoi(fields[1], &head.number) || head.empty() ||
      !IsHex(fields[2]) || !IsHex(fields[3])) {
    return absl::InvalidArgumentError(
        "a line is not TERM NUMBER HASH PROOF, the latter two of 64 hex "
        "digits");
  }
  head.hash = absl::HexStringToBytes(fields[2]);
  const std::string proof = absl::HexStringToBytes(fields[3]);
  std::memcpy(head.proof.bytes.data(), proof.data(), proof.size());
  return head;
}

}  // namespace

void KeepHead(const AuditHead& head, std::vector<AuditHead>& heads) {
  if (head.empty()) return;
  const auto same = std::find_if(
      heads.begin(), heads.end(),
      [&](const AuditHead& kept) { return kept.term == head.term; });
  if (same != heads.end()) {
    if (same->number < head.number) *same = head;
    return;
  }
  heads.push_back(head);
  if (heads.size() <= kMaxAuditHeads) return;
  const auto surpassed = std::adjacent_find(
      heads.begin(), heads.end(), [](const AuditHead& a, const AuditHead& b) {
        return a.number <= b.number;
      });
  heads.erase(surpassed == heads.end() ? heads.begin() : surpassed);
}

std::string WriteHeads(const KeptHeads& kept) {
  std::string text =
      absl::StrCat(kFirstLine, "\n", kept.agent, "\n", kept.cluster, "\n");
  for (const AuditHead& head : kept.heads) {
    absl::StrAppend(&text, head.term, " ", head.number, " ",
                    absl::BytesToHexString(head.hash), " ",
                    absl::BytesToHexString(BytesOf(head.proof)), "\n");
  }
  return text;
}

absl::StatusOr<KeptHeads> ReadHeads(absl::string_view text) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 4 || lines[0] != kFirstLine || !lines.back().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it does not begin with '", kFirstLine,
                     "', an agent and a cluster, or its end is missing"));
  }
  lines.pop_back();
  if (lines.size() > 3 + kMaxAuditHeads) {
    return absl::InvalidArgumentError(
        absl::StrCat("it holds more than ", kMaxAuditHeads, " heads"));
  }
  KeptHeads kept = {std::string(lines[1]), std::string(lines[2]), {}};
  for (size_t i = 3; i < lines.size(); ++i) {
    absl::StatusOr<AuditHead> head = ReadHead(lines[i]);
    if (!head.ok()) return head.status();
    kept.heads.push_back(*std::move(head));
  }
  return kept;
}

}  // namespace pactrain::protocol
