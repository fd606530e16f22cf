#include "agent/core/ballot.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/weakened.h"

namespace pactrain::agent {
namespace {

using protocol::Abort;
using protocol::Cause;
using protocol::CommitVote;

constexpr size_t kMaxNamed = 4;  // In a text.

std::string Join(std::vector<std::string> parts, const char* separator) {
  const size_t more = parts.size() > kMaxNamed ? parts.size() - kMaxNamed : 0;
  parts.resize(parts.size() - more);
  std::string text = absl::StrJoin(parts, separator);
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

}  // namespace

std::string ParametersText(const protocol::Digest& parameters) {
  return parameters.empty() ? "not sent" : parameters.Short();
}

Ballot::Ballot(std::vector<std::string> names)
    : names_(std::move(names)), votes_(names_.size()), aborts_(names_.size()) {}

bool Ballot::AddVote(int member, const CommitVote& vote) {
  const auto& abort = aborts_[member];
  if (abort.has_value() && !abort->voted && !PT_WEAKENED(VoteAfterRefusal)) {
    return false;
  }
  if (votes_[member].has_value()) return *votes_[member] == vote;
  votes_[member] = vote;
  return true;
}

bool Ballot::AddAbort(int member, const Abort& abort) {
  if (aborts_[member].has_value()) return aborts_[member]->voted == abort.voted;
  if (abort.voted ? !AddVote(member, abort.vote) : votes_[member].has_value()) {
    return false;
  }
  aborts_[member] = abort;
  return true;
}

bool Ballot::AllVoted() const {
  if (PT_WEAKENED(CommitWithoutOneVote) && votes_.size() > 2) {
    return votes_[0].has_value() &&
           std::count(votes_.begin(), votes_.end(), std::nullopt) <= 1;
  }
  return std::all_of(votes_.begin(), votes_.end(),
                     [](const auto& vote) { return vote.has_value(); });
}

Cause Ballot::Difference() const {
  Cause cause = Cause::kNone;
  const CommitVote& first = *votes_[0];
  for (const auto& vote : votes_) {
    if (PT_WEAKENED(CommitWithoutOneVote) && !vote) continue;
    if (vote->result != first.result && !PT_WEAKENED(ResultsMayDiffer)) {
      return Cause::kResultDigest;
    }
    if (vote->parameters != first.parameters &&
        !PT_WEAKENED(ParametersMayDiffer)) {
      cause = Cause::kParameters;
    }
  }
  return cause;
}

bool Ballot::HasRefusal() const {
  return std::any_of(aborts_.begin(), aborts_.end(), [](const auto& abort) {
    return abort.has_value() && (!abort->voted || PT_WEAKENED(AnyAbortRefuses));
  });
}

Resolution Ballot::Resolve() const {
  Resolution resolution;
  const bool all_aborted =
      std::all_of(aborts_.begin(), aborts_.end(),
                  [](const auto& abort) { return abort.has_value(); });
  Cause difference = Cause::kNone;
  if (AllVoted()) {
    difference = Difference();
    if (difference == Cause::kNone) {
      resolution.kind = Resolution::Kind::kCommitted;
      resolution.candidate = votes_[0]->candidate;
      for (const auto& vote : votes_) {
        if (PT_WEAKENED(CommitWithoutOneVote) && !vote) continue;
        if (PT_WEAKENED(OneVoteNamesCandidate)) break;
        if (vote->candidate != resolution.candidate) resolution.candidate = 0;
      }
      return resolution;
    }
    resolution.kind = Resolution::Kind::kDisagreed;
    resolution.cause = difference;
    resolution.detail = DifferenceText(difference);
  }
  if (!all_aborted) return resolution;
  resolution.kind = Resolution::Kind::kFailed;
  for (const auto& abort : aborts_) {
    if (abort->cause > resolution.cause) {
      resolution.cause = abort->cause;
      resolution.detail.clear();
    }
  }
  if (resolution.detail.empty())
    resolution.detail = CauseText(resolution.cause);
  return resolution;
}

std::string Ballot::DifferenceText(Cause cause) const {
  const bool results = cause == Cause::kResultDigest;
  std::map<std::string, std::vector<std::string>> by_digest;
  for (size_t m = 0; m < votes_.size(); ++m) {
    const auto& vote = *votes_[m];
    by_digest[results ? vote.result.Short() : ParametersText(vote.parameters)]
        .push_back(names_[m]);
  }
  std::vector<std::string> parts;
  for (auto& [digest, names] : by_digest) {
    parts.push_back(absl::StrCat(digest, " at ", Join(names, ", ")));
  }
  return absl::StrCat(results ? "results" : "parameters",
                      " differ: ", Join(parts, "; "));
}

std::string Ballot::CauseText(Cause cause) const {
  std::vector<std::string> parts;
  for (size_t m = 0; m < aborts_.size(); ++m) {
    if (aborts_[m]->cause != cause || aborts_[m]->detail.empty()) continue;
    parts.push_back(absl::StrCat(names_[m], ": ", aborts_[m]->detail));
  }
  return Join(parts, "; ");
}

std::string Ballot::MissingNames(bool aborted) const {
  std::vector<std::string> names;
  for (size_t m = 0; m < names_.size(); ++m) {
    if (!(aborted ? aborts_[m].has_value() : votes_[m].has_value())) {
      names.push_back(names_[m]);
    }
  }
  return Join(names, ", ");
}

}  // namespace pactrain::agent
