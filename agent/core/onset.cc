#include "agent/core/onset.h"

#include <algorithm>

namespace pactrain::agent {

using protocol::Decision;
using protocol::Onset;

namespace {

bool MeetsPin(const Onset& onset, const Decision& decision) {
  return decision.mode == onset.pin_mode && decision.codec == onset.pin_codec;
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
               const std::vector<MaskState>& masks, uint64_t next) {
  const bool on_grid = onset.activate_every != 0 && IsMultiple(onset, next);
  if (onset.pin_from != 0 && !MeetsPin(onset, in_force) &&
      (next == onset.pin_from || (next > onset.pin_from && on_grid))) {
    return true;
  }
  return on_grid &&
         std::all_of(masks.begin(), masks.end(), [&](const MaskState& mask) {
           return mask.counts && mask.mask_digest == masks[0].mask_digest &&
                  mask.mask_digest != in_force.mask_digest;
         });
}

}  // namespace pactrain::agent
