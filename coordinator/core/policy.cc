#include "coordinator/core/policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

// Whether to quantise, and why.
struct Levels {
  std::optional<Codec> codec;  // Of n levels; nothing: an exact one.
  std::string reason;
};

Levels Exact(absl::string_view why) {
  return {std::nullopt, absl::StrCat("not TERNARY: ", why)};
}

// Then whatever quantising adds is more than what they differ by.
constexpr char kNothingVaries[] =
    "r is not known, the trainers' gradients hardly differ";

// Up to a thousandth, so that what is above a bound also reads so.
double RoundUp(double risk) { return std::ceil(risk * 1000) / 1000; }

Levels Quantise(const Options& options, const Telemetry& telemetry,
                Codec codec) {
  return {codec,
          absl::StrFormat(
              "%s are expected to cost r = %.3f of the batch, %g is allowed",
              CodecName(codec), PredictedRisk(telemetry, codec),
              options.risk_bound)};
}

// The coarsest codec that leaves room, or none. `before` comes first in the
// reason.
Levels QuantiseWithin(const Options& options, const Telemetry& telemetry,
                      const std::string& before) {
  const double room = kEnterBelow * options.risk_bound;
  if (const auto codec = CoarsestWithin(telemetry, room)) {
    Levels levels = Quantise(options, telemetry, *codec);
    return {codec, absl::StrCat(before, levels.reason)};
  }
  return Exact(
      absl::StrFormat("%seven %s would cost r = %.3f, more than %g (%g of %g)",
                      before, CodecName(Codec::kLevels31),
                      RoundUp(PredictedRisk(telemetry, Codec::kLevels31)), room,
                      kEnterBelow, options.risk_bound));
}

// What is exact now may be quantised.
Levels LevelsFromExact(const Options& options, const Telemetry& telemetry) {
  const std::optional<double>& share = telemetry.exchange_share;
  if (share.value_or(0) < options.min_exchange_share) {
    if (!share) return Exact("waiting for the exchange is not measured yet");
    return Exact(absl::StrFormat(
        "waiting for the exchange is %.1f %% of a step, less than %g %%",
        std::floor(1000 * *share) / 10, 100 * options.min_exchange_share));
  }
  if (telemetry.measured_steps < kMinMeasuredSteps) {
    return Exact(absl::StrCat("r is not known yet, ", telemetry.measured_steps,
                              " of ", kMinMeasuredSteps,
                              " steps are measured"));
  }
  if (!telemetry.noise) {
    return Exact(kNothingVaries);
  }
  Levels levels = QuantiseWithin(options, telemetry, "");
  if (levels.codec && share) {
    levels.reason =
        absl::StrFormat("waiting for the exchange is %.0f %% of a step; %s",
                        100 * *share, levels.reason);
  }
  return levels;
}

// What is quantised now stays so while its risk allows.
Levels LevelsFromTernary(const Options& options, Codec now,
                         const Telemetry& telemetry) {
  // 3 levels end with their pin.
  const Codec stay = std::max(now, kCoarsestFirst[0]);
  if (telemetry.measured_steps < kMinMeasuredSteps) {
    return {stay, absl::StrCat(CodecName(stay), " stay until r is measured")};
  }
  if (!telemetry.noise) return Exact(kNothingVaries);
  if (!telemetry.current || telemetry.current->steps < kMinMeasuredSteps) {
    return Quantise(options, telemetry, stay);
  }
  const double risk = telemetry.current->risk();
  const std::string measured =
      absl::StrFormat("%s cost r = %.3f of the batch as measured",
                      CodecName(now), RoundUp(risk));
  if (risk > options.risk_bound) {
    return QuantiseWithin(
        options, telemetry,
        absl::StrFormat("%s, more than %g; ", measured, options.risk_bound));
  }
  const std::optional<Codec> coarser =
      CoarsestWithin(telemetry, kCoarsenBelow * options.risk_bound);
  const Codec next = coarser && *coarser < stay ? *coarser : stay;
  if (next != now) return Quantise(options, telemetry, next);
  return {now,
          absl::StrFormat("%s, %g is allowed", measured, options.risk_bound)};
}

Levels ChooseLevels(const Options& options, const Decision& current,
                    const Telemetry& telemetry) {
  if (telemetry.sites < 2) return Exact("one site alone quantises nothing");
  if (options.risk_bound == 0) return Exact("--risk exact forbids it");
  return current.mode == Mode::kTernary
             ? LevelsFromTernary(options, current.codec, telemetry)
             : LevelsFromExact(options, telemetry);
}

Decision Because(Decision decision, absl::string_view reason) {
  absl::StrAppend(&decision.reason, decision.reason.empty() ? "" : "; ",
                  reason);
  return decision;
}

// What `elements` becomes under a pin `by` somebody.
Decision Pinned(const Options& options, Decision elements, const Pin& pin,
                const std::string& by, int sites) {
  const bool nothing_to_compact =
      pin.mode == Mode::kCompacted && elements.mode == Mode::kFull;
  if (pin.mode == Mode::kFull) elements = FullDecision(options, "");
  if (pin.mode == Mode::kTernary) elements.mode = Mode::kTernary;
  elements.codec = pin.codec;
  std::string why = by;
  if (nothing_to_compact) {
    why = ", not in force: no mask set is agreed that leaves elements out";
  } else if (pin.mode == Mode::kTernary && sites < 2) {
    why += "; one site alone quantises nothing";
  }
  return Because(std::move(elements),
                 absl::StrCat("pinned to ", pin.ToString(), why));
}

// A script's pin is prepared with masks that come in force no earlier, else
// when the elements that it is of are in force: only one decision can be
// prepared, and before its step all is to be exact.
Decision PinnedByScript(const Options& options, Decision elements,
                        const Pins& pins, const Telemetry& telemetry) {
  const Pin& pin = *pins.by_script;
  const auto& now = telemetry.in_force;
  const bool next = now ? pin.IsMetBy(*now) || pin.mode == Mode::kFull ||
                              pins.script_with_masks ||
                              now->mask_digest == elements.mask_digest
                        : pins.script_from <= 1;
  const std::string by =
      absl::StrCat(" by the script from its step ", pins.script_from, " on");
  if (next) {
    return Pinned(options, std::move(elements), pin, by, telemetry.sites);
  }
  return Because(std::move(elements),
                 absl::StrCat("then pinned to ", pin.ToString(), by));
}

}  // namespace

std::optional<Decision> Choose(const Options& options, const Decision& current,
                               const MaskVotes& votes, uint64_t step,
                               const Telemetry& telemetry, const Pins& pins) {
  std::optional<Decision> elements =
      ChooseElements(options, current, votes, step);
  if (!elements) return std::nullopt;
  if (pins.by_operator) {
    return Pinned(options, *std::move(elements), *pins.by_operator,
                  " by an operator", telemetry.sites);
  }
  if (pins.by_script) {
    return PinnedByScript(options, *std::move(elements), pins, telemetry);
  }
  const Levels levels = ChooseLevels(options, current, telemetry);
  if (levels.codec) {
    elements->mode = Mode::kTernary;
    elements->codec = *levels.codec;
  }
  return Because(*std::move(elements), levels.reason);
}

}  // namespace pactrain::coordinator
