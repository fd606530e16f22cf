#include "coordinator/core/policy.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pactrain::coordinator {

using protocol::Decision;
using protocol::Mode;

bool SameContent(const Decision& a, const Decision& b) {
  return a.mode == b.mode && a.codec == b.codec &&
         a.mask_digest == b.mask_digest && a.layout_digest == b.layout_digest;
}

Decision FullDecision(const Options& options, std::string reason) {
  Decision decision;
  decision.mode = Mode::kFull;
  decision.codec = options.codec;
  decision.reason = std::move(reason);
  return decision;
}

namespace {

Decision CompactedDecision(const Options& options, const MaskAgreement& masks) {
  Decision decision;
  decision.mode = Mode::kCompacted;
  decision.codec = options.codec;
  decision.mask_digest = masks.mask_digest;
  decision.layout_digest = masks.layout_digest;
  decision.reason =
      absl::StrFormat("%s; it keeps %.1f %% of the elements", masks.reason,
                      100.0 * static_cast<double>(masks.kept_elements) /
                          static_cast<double>(masks.elements));
  return decision;
}

// The votes do not agree (yet): how long may a COMPACTED decision stay?
std::optional<Decision> WhileUnsettled(const Options& options,
                                       const Decision& current,
                                       const MaskVotes& votes,
                                       const MaskAgreement& masks) {
  if (current.mode != Mode::kCompacted) return std::nullopt;
  if (auto rank = votes.OutsideOf(current.mask_digest, current.layout_digest)) {
    return FullDecision(options,
                        absl::StrCat("rank ", *rank,
                                     " has a mask set that is not inside "
                                     "the agreed one"));
  }
  if (masks.unequal_steps > options.epoch_steps) {
    return FullDecision(options, absl::StrCat(masks.reason, " for more than ",
                                              options.epoch_steps, " steps"));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Decision> Choose(const Options& options, const Decision& current,
                               const MaskVotes& votes, uint64_t step) {
  const MaskAgreement masks = votes.Evaluate(step);
  switch (masks.state) {
    case MaskState::kStable:
      if (masks.kept_elements < masks.elements) {
        return CompactedDecision(options, masks);
      }
      return FullDecision(options, "the masks keep every element");
    case MaskState::kNone:
      return FullDecision(options, masks.reason);
    case MaskState::kMissing:
    case MaskState::kSettling:
    case MaskState::kUnequal:
      return WhileUnsettled(options, current, votes, masks);
  }
  return std::nullopt;
}

}  // namespace pactrain::coordinator
