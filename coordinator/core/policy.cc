#include "coordinator/core/policy.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pactrain::coordinator {

using protocol::Codec;
using protocol::CodecName;
using protocol::Decision;
using protocol::Mode;
using protocol::ModeName;

double ExpectedNoise(Codec codec) {
  switch (codec) {
    case Codec::kLevels3:
      return 0.526;
    case Codec::kLevels5:
      return 0.176;
    case Codec::kLevels7:
      return 0.0781;
    case Codec::kLevels15:
      return 0.0158;
    case Codec::kLevels31:
      return 0.0035;
    case Codec::kFp32:
    case Codec::kBf16:
      break;
  }
  return 0;
}

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

// The votes do not agree (yet): how long may a decision with a mask set stay?
std::optional<Decision> WhileUnsettled(const Options& options,
                                       const Decision& current,
                                       const MaskVotes& votes,
                                       const MaskAgreement& masks) {
  if (current.mask_digest.empty()) return std::nullopt;
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

// Which elements travel, exactly.
std::optional<Decision> ChooseElements(const Options& options,
                                       const Decision& current,
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

// Never chosen by itself: 3 levels, until there is more evidence.
constexpr Codec kCoarsestFirst[] = {Codec::kLevels5, Codec::kLevels7,
                                    Codec::kLevels15, Codec::kLevels31};
// A change must leave this much of the bound free, lest it is taken back soon.
constexpr double kEnterBelow = 0.8;
constexpr double kCoarsenBelow = 0.6;
constexpr int kMinMeasuredSteps = 2;

double PredictedRisk(const Telemetry& telemetry, Codec codec) {
  return telemetry.noise_factor * ExpectedNoise(codec) *
         telemetry.noise->encoded / telemetry.noise->variance;
}

// The coarsest codec whose predicted risk is within `bound`.
std::optional<Codec> CoarsestWithin(const Telemetry& telemetry, double bound) {
  for (Codec codec : kCoarsestFirst) {
    if (PredictedRisk(telemetry, codec) <= bound) return codec;
  }
  return std::nullopt;
}

// The codec of n levels to use; nothing: an exact one.
std::optional<Codec> ChooseLevels(const Options& options,
                                  const Decision& current,
                                  const Telemetry& telemetry) {
  const bool ternary = current.mode == Mode::kTernary;
  if (telemetry.sites < 2 || options.risk_bound == 0) return std::nullopt;
  if (!telemetry.noise || telemetry.noise->steps < kMinMeasuredSteps) {
    return ternary ? std::optional(current.codec) : std::nullopt;
  }
  const double bound = options.risk_bound;
  if (!ternary) {
    if (telemetry.exchange_share.value_or(0) < options.min_exchange_share) {
      return std::nullopt;
    }
    return CoarsestWithin(telemetry, kEnterBelow * bound);
  }
  if (!telemetry.current || telemetry.current->steps < kMinMeasuredSteps) {
    return current.codec;
  }
  if (telemetry.current->risk() > bound) {
    return CoarsestWithin(telemetry, kEnterBelow * bound);
  }
  const std::optional<Codec> coarser =
      CoarsestWithin(telemetry, kCoarsenBelow * bound);
  return coarser && *coarser < current.codec ? coarser : current.codec;
}

std::string TernaryReason(const Options& options, const Decision& current,
                          const Telemetry& telemetry, Codec codec) {
  const std::string share =
      !telemetry.exchange_share || current.mode == Mode::kTernary
          ? ""
          : absl::StrFormat("waiting for the exchange is %.0f %% of a step; ",
                            100 * *telemetry.exchange_share);
  if (!telemetry.noise) return share;
  return absl::StrFormat("%s%s cost r = %.3f of the batch, %.2f is allowed",
                         share, CodecName(codec),
                         PredictedRisk(telemetry, codec), options.risk_bound);
}

Decision Ternary(Decision elements, Codec codec, const std::string& reason) {
  elements.mode = Mode::kTernary;
  elements.codec = codec;
  absl::StrAppend(&elements.reason, elements.reason.empty() ? "" : "; ",
                  reason);
  return elements;
}

// What `elements` becomes under a pin.
Decision Pinned(const Options& options, Decision elements, const Pin& pin) {
  const std::string why =
      absl::StrCat("pinned to ", pin.ToString(), " by an operator");
  if (pin.mode == Mode::kTernary) {
    return Ternary(std::move(elements), pin.codec, why);
  }
  if (pin.mode == Mode::kFull) elements = FullDecision(options, "");
  elements.codec = pin.codec;
  absl::StrAppend(&elements.reason, elements.reason.empty() ? "" : "; ", why);
  return elements;
}

}  // namespace

std::optional<Decision> Choose(const Options& options, const Decision& current,
                               const MaskVotes& votes, uint64_t step,
                               const Telemetry& telemetry,
                               const std::optional<Pin>& pin) {
  std::optional<Decision> elements =
      ChooseElements(options, current, votes, step);
  if (!elements) return std::nullopt;
  if (pin) return Pinned(options, *std::move(elements), *pin);
  const std::optional<Codec> levels = ChooseLevels(options, current, telemetry);
  if (!levels) return elements;
  const std::string reason =
      TernaryReason(options, current, telemetry, *levels);
  return Ternary(*std::move(elements), *levels, reason);
}

}  // namespace pactrain::coordinator
