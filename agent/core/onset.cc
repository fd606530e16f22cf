#include "agent/core/onset.h"

#include <algorithm>

namespace pactrain::agent {

using protocol::Decision;
using protocol::Onset;

namespace {

bool MeetsPin(const Onset& onset, const Decision& decision) {
  return decision.mode == onset.pin_mode && decision.codec == onset.pin_codec;
}

// It has voted for no masks.
bool IsWithout(const MaskState& mask) {
  return mask.mask_digest.empty() && !mask.layout_digest.empty();
}

bool IsMultiple(const Onset& onset, uint64_t next) {
  return onset.activate_every == 0 || next % onset.activate_every == 0;
}

}  // namespace

bool IsDue(const Onset& onset, const Decision& in_force,
           const Decision& candidate, uint64_t next) {
  if (onset.pin_from != 0 && MeetsPin(onset, candidate) &&
      !MeetsPin(onset, in_force)) {
    return next == onset.pin_from ||
           (next > onset.pin_from && IsMultiple(onset, next));
  }
  return candidate.mask_digest.empty() ||
         candidate.mask_digest == in_force.mask_digest ||
         IsMultiple(onset, next);
}

bool IsAwaited(const Onset& onset, const Decision& in_force,
               const std::optional<Decision>& candidate,
               const std::vector<MaskState>& masks, uint64_t next) {
  const bool on_grid = onset.activate_every != 0 && IsMultiple(onset, next);
  const bool pins =
      onset.pin_from != 0 && !MeetsPin(onset, in_force) &&
      (next == onset.pin_from || (next > onset.pin_from && on_grid));
  if ((!on_grid && !pins) || masks.empty()) return false;
  const MaskState& first = masks[0];
  const bool settled =
      std::all_of(masks.begin(), masks.end(), [&](const MaskState& mask) {
        return mask.mask_digest == first.mask_digest &&
               (mask.counts || IsWithout(mask));
      });
  if (!settled) return false;
  const bool full = onset.pin_from != 0 && next >= onset.pin_from &&
                    onset.pin_mode == protocol::Mode::kFull;
  const Decision& then = candidate ? *candidate : in_force;
  if (first.counts && !full && then.mask_digest != first.mask_digest) {
    return true;
  }
  return pins && !candidate &&
         (first.counts || onset.pin_mode != protocol::Mode::kCompacted);
}

}  // namespace pactrain::agent
