#include "agent/core/decision_switch.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/weakened.h"

namespace pactrain::agent {
namespace {

using protocol::Decision;

// Why `decision` does not fit the local trainers; empty if it does.
std::string Mismatch(const Decision& decision,
                     const std::vector<MaskState>& masks) {
  if (decision.mask_digest.empty() || PT_WEAKENED(UnfitDecisionAccepted)) {
    return "";
  }
  for (const MaskState& mask : masks) {
    if (mask.mask_digest != decision.mask_digest) {
      return absl::StrFormat("rank %d has mask set %s, the decision %s",
                             mask.rank, mask.mask_digest.Short(),
                             decision.mask_digest.Short());
    }
    if (mask.layout_digest != decision.layout_digest) {
      return absl::StrFormat("rank %d has layout %s, the decision %s",
                             mask.rank, mask.layout_digest.Short(),
                             decision.layout_digest.Short());
    }
  }
  return "";
}

}  // namespace

std::string DecisionSwitch::Prepare(const Decision& decision,
                                    const std::vector<MaskState>& masks) {
  // In force already, or said again while a vote holds on to it.
  if (decision.version == in_force_.version) return "";
  if (decision.version < in_force_.version) {
    return absl::StrFormat("version %d is older than %d, which is in force",
                           decision.version, in_force_.version);
  }
  std::string reason = Mismatch(decision, masks);
  if (!reason.empty()) return reason;
  if (!named_ || PT_WEAKENED(NamedCandidateReplaced)) {
    candidate_ = decision;
  } else if (candidate_->version == decision.version) {
    replaced_ = false;
  } else {
    replaced_ = true;
    replacement_ = decision;
  }
  return "";
}

void DecisionSwitch::Revoke(uint64_t version) {
  if (replaced_ && replacement_ && replacement_->version == version) {
    replacement_.reset();
  }
  if (!candidate_ || candidate_->version != version) return;
  if (!named_) {
    candidate_.reset();
  } else if (!replaced_) {
    replaced_ = true;
    replacement_.reset();
  }
}

std::string DecisionSwitch::OnMasks(const std::vector<MaskState>& masks) {
  const std::optional<Decision>& next = replaced_ ? replacement_ : candidate_;
  if (!next) return "";
  std::string reason = Mismatch(*next, masks);
  if (!reason.empty()) Revoke(next->version);
  return reason;
}

uint64_t DecisionSwitch::NameCandidate(bool due) {
  named_ = due && candidate_.has_value();
  if (PT_WEAKENED(InForceWhenNamed) && named_) {
    in_force_ = *candidate_;
    return in_force_.version;
  }
  return named_ ? candidate() : 0;
}

void DecisionSwitch::OnResolved(uint64_t agreed) {
  if (agreed != 0 && agreed != in_force_.version) {
    PT_CHECK(named_ && (candidate_->version == agreed ||
                        PT_WEAKENED(NamedCandidateReplaced)));
    in_force_ = *std::exchange(candidate_, std::nullopt);
  }
  if (std::exchange(replaced_, false))
    candidate_ = std::exchange(replacement_, {});
  named_ = false;
  // A replacement may be older than what is in force now.
  if (candidate_ && candidate_->version <= in_force_.version)
    candidate_.reset();
}

}  // namespace pactrain::agent
